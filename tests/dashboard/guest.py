"""Somebody at the operator's page, in a real browser, who notices everything that ought not to happen."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

from tests.support.service import RunningService

BOUND_MS = 20_000
expect.set_options(timeout=BOUND_MS)
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
# How Chromium reports a reply of 4xx and a connection that isn't there; some tests make both on purpose.
_EXPECTED = "Failed to load resource"


class Guest:
    """A browser profile. Everything that its pages ask for must lie in `origins`, and nothing may go wrong in them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.origins: set[str] = set()
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def open(
        self, service: RunningService, where: str = "", token: str | None = None, *, script: str = "", **context: Any
    ) -> Page:
        """A page of a new profile, at this hash; with `token` it is signed in from the beginning.

        `script` runs before the page's own.
        """
        options = {"viewport": DESKTOP, "locale": "en-GB", "timezone_id": "UTC"} | context
        made = self._browser.new_context(**options)
        self._contexts.append(made)
        made.set_default_timeout(BOUND_MS)
        if token is not None:
            made.add_init_script(
                f"if (!sessionStorage.getItem('visited')) sessionStorage.setItem('retoma.token', {json.dumps(token)});"
                "sessionStorage.setItem('visited', 'yes');"
            )
        if script:
            made.add_init_script(script)
        page = self.another(made)
        self.origins.add(service.url)
        page.goto(f"{service.url}/{where}")
        return page

    def another(self, context: BrowserContext) -> Page:
        """One more tab of the same profile."""
        page = context.new_page()
        page.on("request", self._asked)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        return page

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)

    def _said(self, message: ConsoleMessage) -> None:
        if not message.text.startswith(_EXPECTED):
            self.complaints.append(f"console {message.type}: {message.text}")

    def streams(self) -> list[str]:
        """The queries with which texts were followed."""
        parts = [urlsplit(url) for url in self.requests]
        return [part.query for part in parts if part.path.startswith("/v1/responses/") and "stream" in part.query]

    def leave(self) -> None:
        """Closes everything, then fails if anything was wrong."""
        cookies = [cookie["name"] for context in self._contexts for cookie in context.cookies()]
        for context in self._contexts:
            context.close()
        assert self.complaints == []
        assert cookies == []
        foreign = [url for url in self.requests if not url.startswith(("data:", *(f"{o}/" for o in self.origins)))]
        assert foreign == [], "a request left the page's origin"


def title(page: Page, text: str) -> None:
    """Waits until the page with this heading is there."""
    expect(page.locator("#title")).to_have_text(text)


def focused(page: Page) -> str:
    """The id of the element that has the focus, or its text."""
    return page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
