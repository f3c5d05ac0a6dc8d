"""Texts of strangers are shown as text; and whatever they are, every page fits a phone and can be read."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.guest import PHONE, Guest
from tests.dashboard.strangers import BREAKOUT, CLIENT, EVIL, IMAGE, LONG, MODEL, SCRIPT, Tasks
from tests.support.service import RunningService

pytestmark = pytest.mark.xdist_group("dashboard")
CONTRAST_MIN = 4.5


def pages_of(tasks: Tasks) -> list[str]:
    """Every kind of page there is."""
    of_tasks = [f"#/tasks/{task}" for task in astuple(tasks)]
    lists = ["#/", "#/tasks", "#/tasks?state=failed", "#/tasks?state=loading", "#/models", "#/clients", "#/store"]
    return [*lists, *of_tasks, f"#/tasks/{tasks.completed}/events"]


def go(page: Page, where: str) -> None:
    """Opens a page of the one that is open, and everything on it that can be opened."""
    page.evaluate(f"document.getElementById('title')?.remove(); location.hash = {where!r}")
    expect(page.locator("#title")).to_be_visible()
    for details in page.locator("details").all():
        details.locator("summary").click()
        expect(details.locator("pre").first).to_be_visible()


def test_no_text_of_a_stranger_becomes_part_of_the_page(service: RunningService, tasks: Tasks, guest: Guest) -> None:
    page = guest.open(service, "", service.token)
    texts: dict[str, str] = {}
    for where in pages_of(tasks):
        go(page, where)
        if tasks.running in where:  # this one comes as a stream
            expect(page.locator("#output")).to_contain_text(LONG)
        texts[where] = page.evaluate("document.getElementById('view').textContent")
        foreign = (
            "#view :is(img, script, style, iframe, object, form, input, textarea, [onfocus], [onerror], [autofocus])"
        )
        assert page.locator(foreign).count() == 0
        assert "owned" not in page.title()
    written = f"\nfirst line {EVIL}{LONG}"
    for task in (tasks.running, tasks.foreground, tasks.completed, tasks.failed):
        assert written in texts[f"#/tasks/{task}"]
    for task in astuple(tasks):
        # Model, metadata, both messages.
        for text in (MODEL, EVIL, IMAGE[:40], SCRIPT + LONG, BREAKOUT, CLIENT):
            assert text in texts[f"#/tasks/{task}"]
    assert f"No such model: {EVIL}." in texts[f"#/tasks/{tasks.failed}"]
    for where in ("#/", "#/tasks"):
        assert MODEL in texts[where]
        assert CLIENT in texts[where]
    assert MODEL in texts["#/models"]
    assert EVIL in texts["#/models"]
    assert CLIENT in texts["#/clients"]

    # The name of a client goes through the script as well, into the question.
    go(page, "#/clients")
    page.get_by_role("button", name="Revoke").click()
    expect(page.locator("#confirm-text")).to_contain_text(CLIENT)
    assert page.locator("#confirm img").count() == 0
    page.keyboard.press("Escape")
    expect(page.locator("#confirm")).to_be_hidden()


WIDTH = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
# The least contrast between a text and what lies behind it, over every element that holds text itself.
CONTRAST = """() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = color.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parts(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  let least = [Infinity, ''];
  for (const element of document.querySelectorAll('body *')) {
    const texts = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    if (!texts.length || !element.checkVisibility({ visibilityProperty: true }) || element.matches('.skip')) continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < least[0]) least = [ratio, element.outerHTML.slice(0, 200)];
  }
  return least;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_fits_a_phone_and_has_enough_contrast(
    service: RunningService, tasks: Tasks, guest: Guest, theme: str
) -> None:
    page = guest.open(service, "", color_scheme=theme, viewport=PHONE)
    expect(page.locator("#sign-in")).to_be_visible()
    grounds = [page.evaluate("getComputedStyle(document.documentElement).backgroundColor")]
    narrow: list[str] = []

    def look(where: str) -> None:
        content, window = page.evaluate(WIDTH)
        if content > window:
            narrow.append(f"{where} is {content} wide")
        ratio, element = page.evaluate(CONTRAST)
        assert ratio >= CONTRAST_MIN, f"{where}: {ratio:.2f} at {element}"

    look("sign-in")
    page.locator("#secret").fill(service.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#title")).to_have_text("Overview")
    for where in pages_of(tasks):
        go(page, where)
        look(where)
    go(page, f"#/tasks/{tasks.queued}")
    page.locator("#cancel").click()
    expect(page.locator("#confirm")).to_be_visible()
    look("the question")
    assert grounds == (["rgb(245, 246, 248)"] if theme == "light" else ["rgb(16, 19, 23)"])
    assert narrow == []


def test_a_waiting_task_says_why_and_what_to_do(service: RunningService, tasks: Tasks, guest: Guest) -> None:
    page = guest.open(service, "", service.token)
    row = page.locator(f"#waiting-{tasks.queued}")
    expect(row).to_contain_text("Next in the queue. This instance has no workers. Start one that has")
    row.locator("a").click()
    expect(page.locator("#says")).to_contain_text("retoma serve --workers 2")


def test_a_foreground_task_can_not_be_cancelled_from_here(service: RunningService, tasks: Tasks, guest: Guest) -> None:
    page = guest.open(service, f"#/tasks/{tasks.foreground}", service.token)
    expect(page.locator("#says")).to_contain_text("ends when its client goes away")
    expect(page.locator("#cancel")).to_have_count(0)
