"""One Chromium for all tests of the operator's page, and a guest in it for each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.dashboard.guest import Guest
from tests.dashboard.strangers import Tasks, write_store
from tests.support.service import RunningService, start_service

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("strangers") / "data"


@pytest.fixture(scope="module")
def tasks(folder: Path) -> Tasks:
    """A store with a task in every state, and hostile texts wherever there is a place for one."""
    return write_store(folder)


@pytest.fixture(scope="module")
def service(folder: Path, tasks: Tasks) -> Iterator[RunningService]:
    """Serves those tasks and works on none; a module that needs another has its own."""
    with start_service(folder, args=["--workers", "0"]) as running:
        yield running
