"""One Chromium for all tests of the operator's page, and a guest in it for each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.dashboard.guest import Guest

SWITCHES = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; in CI its absence is a failure.

    Of one module only: while it is open, Playwright has an event loop in this thread, and no other test could run one.
    """
    found = shutil.which("chromium")
    if found is None:
        message = "there is no `chromium` on PATH; apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=SWITCHES)
        yield started
        started.close()


@pytest.fixture
def guest(browser: Browser) -> Iterator[Guest]:
    """A fresh profile; when the test is over, whatever the browser complained of is a failure."""
    made = Guest(browser)
    yield made
    made.leave()
