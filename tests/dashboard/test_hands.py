"""What an operator does: with the keyboard alone, with links, and with the browser's own buttons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.guest import Guest, focused, title
from tests.support.api import Api, text_of
from tests.support.service import RunningService, start_service

pytestmark = pytest.mark.xdist_group("dashboard")
ENDLESS = {"RETOMA_SCRIPTED_TOKEN_MS": "30", "RETOMA_SCRIPTED_TOKENS": "100000"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with start_service(tmp_path_factory.mktemp("hands") / "data", env=ENDLESS, args=["--workers", "1"]) as running:
        yield running


@pytest.fixture(scope="module")
def api(service: RunningService) -> Api:
    return Api(service)


def tab_to(page: Page, wanted: str) -> None:
    """Presses Tab until the element has the focus; fails when it can't be reached."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if focused(page) == wanted:
            return
    pytest.fail(f"{wanted} can't be reached with the keyboard")


def test_empty_pages_say_what_to_do_next(service: RunningService, guest: Guest) -> None:
    page = guest.open(service, "", service.token)
    expect(page.locator("#running .empty code")).to_have_text('retoma ask --background "Tell me about the sea"')
    for where, command in (("tasks", "retoma ask"), ("clients", "retoma clients pair")):
        page.goto(f"{service.url}/#/{where}")
        expect(page.locator(".empty code")).to_contain_text(command)


def test_a_task_is_cancelled_with_the_keyboard_alone(service: RunningService, api: Api, guest: Guest) -> None:
    task = api.create()
    api.wait_tokens(task, 1)
    page = guest.open(service, "", service.token)
    title(page, "Overview")
    page.keyboard.press("Tab")
    assert focused(page) == "skip"
    page.keyboard.press("Enter")
    assert focused(page) == "main"
    tab_to(page, f"resp…{task[-8:]}")
    page.keyboard.press("Enter")
    title(page, f"resp…{task[-8:]}")
    assert focused(page) == "title"
    tab_to(page, "cancel")
    page.keyboard.press("Enter")
    assert focused(page) == "confirm-no"  # the harmless answer
    page.keyboard.press("Escape")
    expect(page.locator("#confirm")).to_be_hidden()
    assert focused(page) == "cancel"
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#confirm")).to_be_hidden()
    assert api.get(task)["status"] == "in_progress"

    page.keyboard.press("Enter")
    tab_to(page, "confirm-yes")
    page.keyboard.press("Space")
    expect(page.locator("#notice")).to_have_text("The task is cancelled.")
    expect(page.locator(".titled .state").first).to_have_text("cancelled")
    expect(page.locator("#cancel")).to_have_count(0)
    assert page.evaluate("document.getElementById('output').textContent") == text_of(api.get(task))


def test_a_cancel_by_an_old_look_does_nothing_and_says_so(service: RunningService, api: Api, guest: Guest) -> None:
    task = api.create()
    api.wait_tokens(task, 1)
    page = guest.open(service, f"#/tasks/{task}", service.token)
    title(page, f"resp…{task[-8:]}")
    # In one go, because the page looks again by itself and would put it right.
    page.evaluate("const button = document.getElementById('cancel'); button.dataset.version = '1'; button.click()")
    page.locator("#confirm-yes").click()
    expect(page.locator("#notice")).to_contain_text("The task has changed since you looked, so nothing was done.")
    assert api.get(task)["status"] == "in_progress"
    page.locator("#cancel").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#notice")).to_have_text("The task is cancelled.")


def test_who_waits_is_told_behind_whom_and_for_what(service: RunningService, api: Api, guest: Guest) -> None:
    running, *waiting = (api.create() for _ in range(3))
    api.wait_tokens(running, 1)
    page = guest.open(service, "", service.token)
    for task, why in zip(waiting, ("Next in the queue.", "Behind 1 other."), strict=True):
        expect(page.locator(f"#waiting-{task} .wide")).to_have_text(f"{why} The only worker here is busy.")
    page.goto(f"{service.url}/#/tasks/{waiting[1]}")
    expect(page.locator("#says")).to_contain_text("Behind 1 other. The only worker here is busy.")
    api.cancel(waiting[0])
    expect(page.locator("#says")).to_contain_text("Next in the queue.")
    api.cancel(running)
    expect(page.locator(".titled .state").first).to_have_text("running")
    expect(page.locator("#says")).to_be_empty()
    expect(page.locator("#output")).to_contain_text(" ")
    api.cancel(waiting[1])


def test_links_are_links_and_the_back_button_goes_back(service: RunningService, api: Api, guest: Guest) -> None:
    task = api.create(max_output_tokens=100)
    api.wait_finished(task)
    page = guest.open(service, "", service.token)
    title(page, "Overview")
    page.locator("#nav").get_by_role("link", name="Tasks").click()
    title(page, "Tasks")
    page.get_by_role("link", name="completed", exact=True).click()
    expect(page.get_by_role("row")).to_have_count(2)
    page.locator(f"#task-{task} a").click()
    title(page, f"resp…{task[-8:]}")
    page.get_by_role("link", name="events of the log").click()
    title(page, "Events")
    first = page.locator(".events > li").first.get_attribute("id")
    page.get_by_role("link", name="Next").click()
    expect(page.locator("#event-50")).to_be_visible()
    page.go_back()
    expect(page.locator(f"#{first}")).to_be_visible()
    page.go_back()
    title(page, f"resp…{task[-8:]}")
    page.go_back()
    title(page, "Tasks")
    assert page.url.endswith("#/tasks?state=completed")
    page.go_forward()
    title(page, f"resp…{task[-8:]}")
    assert page.title() == f"Task resp…{task[-8:]} · Retoma"


def test_an_address_that_leads_nowhere_says_so(service: RunningService, guest: Guest) -> None:
    gone = "resp_" + "0" * 32
    page = guest.open(service, f"#/tasks/{gone}", service.token)
    expect(page.locator("#view")).to_contain_text(f"There is no response {gone}. It may have been deleted.")
    # Nothing but the page's own pieces is ever fetched as HTML, whatever an address says.
    asked = len(guest.requests)
    page.goto(f"{service.url}/#/../v1/tasks")
    title(page, "Overview")
    assert [url for url in guest.requests[asked:] if "/v1/" in url] == []


def test_motion_is_left_out_for_who_asks_for_that(service: RunningService, guest: Guest) -> None:
    moved = []
    for wish in ("no-preference", "reduce"):
        page = guest.open(service, "", service.token, reduced_motion=wish)
        title(page, "Overview")
        moved.append(page.evaluate("getComputedStyle(document.getElementById('sign-out')).transitionDuration"))
    assert moved == ["0.12s", "0s"]
