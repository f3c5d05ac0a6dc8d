"""A text while it grows: followed, lost with the service, and gone on with by the page itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.guest import Guest, title
from tests.support.api import Api, text_of
from tests.support.service import RunningService, free_port, start_service
from tests.support.waiting import wait_for

pytestmark = pytest.mark.xdist_group("dashboard")
SLOW = {"RETOMA_SCRIPTED_TOKEN_MS": "30", "RETOMA_SCRIPTED_TOKENS": "100000"}
TOKENS = 80


class Place:
    """A data directory with a port: its service may be killed and started again where it was."""

    def __init__(self, folder: Path) -> None:
        self._data_dir = folder / "data"
        self._port = free_port()
        self._started: list[RunningService] = []
        self.service = self.start()
        self.api = Api(self.service)

    def start(self) -> RunningService:
        self._started.append(start_service(self._data_dir, env=SLOW, args=["--port", str(self._port)]))
        return self._started[-1]

    def kill(self) -> None:
        self.service.kill(engines_too=True)

    def start_again(self) -> None:
        self.service = self.start()
        self.api.attach(self.service)

    def close(self) -> None:
        for service in self._started:
            service.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """For tests that kill nothing."""
    made = Place(tmp_path_factory.mktemp("steady"))
    yield made
    made.close()


def shown(page: Page) -> str:
    return page.evaluate("document.getElementById('output')?.textContent ?? ''")


def wait_shown(page: Page, characters: int) -> str:
    # Not wait_for_function: the page's policy forbids it to evaluate text.
    expect(page.locator("#output")).to_have_text(re.compile(rf"[\s\S]{{{characters}}}"))
    return shown(page)


# From here on every change of the text is noted, in the page itself, so that none is missed.
WATCH = """() => {
  window.samples = [];
  const output = document.getElementById('output');
  const note = () => window.samples.push(output.textContent);
  new MutationObserver(note).observe(output, { childList: true, characterData: true, subtree: true });
}"""


def watched(page: Page, whole: Callable[[], str]) -> None:
    """Waits for the end; whatever the text has been since WATCH must have been a beginning of the whole one."""
    expect(page.locator(".titled .state").first).to_have_text("completed", timeout=60_000)
    samples, text = page.evaluate("window.samples"), whole()
    assert shown(page) == text
    assert len(samples) > 1
    assert [sample for sample in samples if not text.startswith(sample)] == [], "shown twice, or left out on the way"


def instance_of(overview: Page) -> str:
    return overview.locator("#service dd.id").nth(1).inner_text()


def state_of(page: Page) -> str:
    return page.locator(".titled .state").first.inner_text()


@pytest.mark.timeout(90)
def test_a_page_that_loses_a_killed_service_goes_on_by_itself_at_the_next_event(place: Place, guest: Guest) -> None:
    task = place.api.create(max_output_tokens=TOKENS)
    page = guest.open(place.service, f"#/tasks/{task}", place.service.token)
    overview = guest.another(page.context)
    overview.goto(f"{place.service.url}/")
    title(overview, "Overview")
    old = instance_of(overview)
    before = wait_shown(page, 60)
    page.evaluate(WATCH)
    page.evaluate("window.neverReloaded = true")
    page.evaluate("window.sameText = document.getElementById('output').firstChild")
    place.kill()
    for tab in (page, overview):
        expect(tab.locator("#connection")).to_have_text("Connection lost. Trying again…")
    title(overview, "Overview")  # what was shown stays
    cut = shown(page)
    assert cut.startswith(before)
    place.start_again()

    watched(page, lambda: text_of(place.api.get(task)))
    for tab in (page, overview):
        expect(tab.locator("#connection")).to_have_text("")
    wait_for(lambda: instance_of(overview) != old, "the new instance's name")
    assert len(shown(page)) > len(cut)
    assert page.evaluate("window.neverReloaded && document.getElementById('output').firstChild === window.sameText")
    first, *later = guest.streams()
    assert "starting_after" not in first
    assert later
    # What is asked for begins right behind the last piece that was shown.
    asked = [int(query.rpartition("starting_after=")[2]) for query in later]
    assert asked == sorted(asked)
    events = place.api.events(task)
    assert events[asked[0]]["type"] == "response.output_text.delta"
    assert "".join(event["delta"] for event in events[: asked[0] + 1] if "delta" in event) == cut
    restart = page.locator(".life .restart")
    expect(restart).to_contain_text("Policy resume: it goes on after")
    expect(page.locator(".life > li").last).to_contain_text(f"{TOKENS} tokens in all")


@pytest.mark.timeout(90)
def test_a_retried_text_begins_again_on_the_page_too(place: Place, guest: Guest) -> None:
    # The seed is the same, so is the text: whatever is shown twice is noticed.
    task = place.api.create(on_restart="retry", max_output_tokens=TOKENS)
    page = guest.open(place.service, f"#/tasks/{task}", place.service.token)
    wait_shown(page, 60)
    page.evaluate(WATCH)
    place.kill()
    place.start_again()
    watched(page, lambda: text_of(place.api.get(task)))
    expect(page.locator(".life .restart")).to_contain_text("Policy retry: it begins again.")


def test_the_text_so_far_is_what_the_stream_has_brought_and_the_end_changes_nothing_of_it(
    steady: Place, guest: Guest
) -> None:
    task = steady.api.create(max_output_tokens=TOKENS)
    page = guest.open(steady.service, f"#/tasks/{task}", steady.service.token)
    part = wait_shown(page, 30)
    page.evaluate("getSelection().setBaseAndExtent(output.firstChild, 3, output.firstChild, 20)")
    selected = page.evaluate("getSelection().toString()")
    assert selected == part[3:20]
    page.evaluate(WATCH)
    watched(page, lambda: text_of(steady.api.get(task)))
    assert page.evaluate("getSelection().toString()") == selected
    assert len(guest.streams()) == 1


# Networks cut where they like: here after every fifth byte, so in the middle of characters and of line ends.
CUT = """
const whole = window.fetch;
window.fetch = async (path, options) => {
  const reply = await whole(path, options);
  if (!path.includes('stream=true')) return reply;
  const cut = new TransformStream({
    transform: (chunk, out) => { for (let at = 0; at < chunk.length; at += 5) out.enqueue(chunk.slice(at, at + 5)); },
  });
  return new Response(reply.body.pipeThrough(cut), { status: reply.status, headers: reply.headers });
};
"""


def test_a_stream_that_comes_in_crumbs_is_put_together(steady: Place, guest: Guest) -> None:
    task = steady.api.create(max_output_tokens=TOKENS)
    page = guest.open(steady.service, f"#/tasks/{task}", steady.service.token, script=CUT)
    expect(page.locator("#output")).to_be_visible()
    page.evaluate(WATCH)
    watched(page, lambda: text_of(steady.api.get(task)))
    assert len(guest.streams()) == 1


def test_an_ended_text_is_shown_without_a_stream(steady: Place, guest: Guest) -> None:
    task = steady.api.create(max_output_tokens=12)
    whole = text_of(steady.api.wait_finished(task))
    page = guest.open(steady.service, f"#/tasks/{task}", steady.service.token)
    title(page, f"resp…{task[-8:]}")
    assert shown(page) == whole
    assert state_of(page) == "completed"
    expect(page.locator(".life > li").last).to_contain_text("It reached the length that it was given. 12 tokens in all")
    assert guest.streams() == []


def test_the_overview_renews_itself_and_takes_neither_focus_nor_selection_nor_place(
    steady: Place, guest: Guest
) -> None:
    first = steady.api.create()
    page = guest.open(steady.service, "", steady.service.token, viewport={"width": 1000, "height": 400})
    page.clock.install()  # from here on two seconds pass when the test says so
    page.reload()
    row = page.locator(f"#running-{first}")
    expect(row).to_be_visible()
    row.locator("a").focus()
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#service h2'))")
    page.evaluate("window.scrollTo(0, 150)")
    tokens = row.locator("td[data-label=Tokens]")
    before = tokens.inner_text()
    second = steady.api.create()
    steady.api.wait_tokens(first, int(before) + 1)
    page.clock.run_for(2_100)
    expect(page.locator(f"#running-{second}")).to_be_visible()
    expect(tokens).not_to_have_text(before)
    assert page.evaluate("getSelection().toString()") == "Service"
    assert page.evaluate("document.activeElement.href").endswith(f"#/tasks/{first}")
    assert page.evaluate("scrollY") == 150
    for task in (first, second):
        steady.api.cancel(task)
    page.clock.run_for(2_100)
    for task in (first, second):
        expect(page.locator(f"#ended-{task}")).to_be_visible()


def test_nothing_is_asked_for_while_the_tab_is_hidden(steady: Place, guest: Guest) -> None:
    page = guest.open(steady.service, "", steady.service.token)
    title(page, "Overview")
    page.clock.install()
    page.reload()
    title(page, "Overview")
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.away ?? false})")
    with page.expect_request("**/dashboard/overview"):
        page.clock.run_for(2_100)
    page.wait_for_load_state("networkidle")
    page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(2_100)  # the look that was due already may still be taken
    page.wait_for_load_state("networkidle")
    asked = len(guest.requests)
    page.clock.run_for(60_000)
    page.evaluate("fetch('/healthz')")  # what was asked for before it has been noted when it is
    assert [url for url in guest.requests[asked:] if "dashboard" in url] == []
    with page.expect_request("**/dashboard/overview"):
        page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")


def test_two_tabs_follow_one_text_each_to_its_end(steady: Place, guest: Guest) -> None:
    task = steady.api.create(max_output_tokens=TOKENS)
    first = guest.open(steady.service, f"#/tasks/{task}", steady.service.token)
    wait_shown(first, 10)
    second = guest.another(first.context)
    second.goto(f"{steady.service.url}/#/tasks/{task}")
    for page in (first, second):
        expect(page.locator(".titled .state").first).to_have_text("completed")
    assert shown(first) == shown(second) == text_of(steady.api.get(task))
