"""One response followed to its end, whatever happens to the service meanwhile.

The events of a log are numbered without gaps and sent the same for ever, so following is simple: attach after the last
number that was seen, take what comes, and when the connection ends before the log does, attach again. The first request
carries an idempotency key: if its reply is lost, the same request is sent again and leads to the same task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from retoma.cli.client import Client, Event
from retoma.cli.failures import Answered, ConnectionLost, NothingListens, OperationFailed

TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 1.0
# The service is there but can't take the request now, and says that the same one may be sent again.
_PASSING = frozenset({"store_unavailable", "shutting_down", "idempotency_in_progress"})


@dataclass(slots=True)
class Outage:
    """A time without a connection. `seconds_left` is how long it may still last."""

    reason: str
    seconds_left: float


class Patience:
    """How long to wait for a service that was there, with growing pauses; renewed by every sign of life."""

    def __init__(self, wait_s: float, on_outage: Callable[[Outage], None]) -> None:
        self._wait_s = wait_s
        self._on_outage = on_outage
        self._since: float | None = None
        self._pause_s = _PAUSE_S_MIN

    @property
    def waiting(self) -> bool:
        """True from the first failure to the next sign of life."""
        return self._since is not None

    def renew(self) -> None:
        """Something came."""
        self._since, self._pause_s = None, _PAUSE_S_MIN

    def wait(self, error: ConnectionLost | NothingListens | Answered) -> None:
        """Waits a little; raises the error itself once the time is over."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            if self._wait_s > 0:
                self._on_outage(Outage(error.message, self._wait_s))
        left = self._since + self._wait_s - now
        if left <= 0:
            raise error
        time.sleep(min(self._pause_s, left))
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)


class Following:
    """A response that is followed: either a new one (`request`) or one that is there (`response_id`)."""

    def __init__(
        self,
        client: Client,
        patience: Patience,
        *,
        request: Mapping[str, Any] | None = None,
        key: str = "",
        response_id: str = "",
        after: int = -1,
    ) -> None:
        assert request or response_id
        self._client = client
        self._patience = patience
        self._request = request
        self._key = key
        self.response_id = response_id
        self.last_seq = after
        self.attachments = 0
        """How often a connection was made."""

    def events(self) -> Iterator[Event]:
        """Every event once, in order, to the terminal one; raises when the service stays away for too long."""
        while True:
            try:
                with self._attach() as events:
                    self.attachments += 1
                    for event in events:
                        if self._is_new(event):
                            yield event
                        if event.type in TERMINAL:
                            return
            except (ConnectionLost, NothingListens, Answered) as error:
                self._outlast(error)
            else:  # the service ends its streams when it stops, and comes back after the restart
                self._outlast(ConnectionLost(f"{self._client.target.url} closed the stream before the end"))

    def _attach(self) -> AbstractContextManager[Iterator[Event]]:
        if self.response_id:
            params = {"stream": "true"} | ({"starting_after": self.last_seq} if self.last_seq >= 0 else {})
            return self._client.stream(f"/v1/responses/{quote(self.response_id, safe='')}", params=params)
        headers = {"Idempotency-Key": self._key}
        return self._client.stream("/v1/responses", body=self._request, headers=headers)

    def _is_new(self, event: Event) -> bool:
        self._patience.renew()
        if not self.response_id:
            self.response_id = event.fields["response"]["id"]
        if event.seq > self.last_seq + 1:
            raise OperationFailed(
                f"event {event.seq} came after event {self.last_seq}; "
                f"this should never be: please report it, with `retoma tasks events {self.response_id} --json`"
            )
        if event.seq <= self.last_seq:
            return False
        self.last_seq = event.seq
        return True

    def _outlast(self, error: ConnectionLost | NothingListens | Answered) -> None:
        outlast(error, self._patience, seen_before=self.attachments > 0)


def outlast(error: ConnectionLost | NothingListens | Answered, patience: Patience, *, seen_before: bool) -> None:
    """Waits if it may help, else raises the error: an address where nothing ever answered is a mistake, no outage."""
    known = seen_before or patience.waiting
    if isinstance(error, NothingListens) and not known:
        raise error
    if isinstance(error, Answered) and not _may_pass(error, known=known):
        raise error
    patience.wait(error)


def _may_pass(error: Answered, *, known: bool) -> bool:
    """A service, or a proxy before it, that is just going down or coming up may also stumble over a request."""
    stumbled = known and error.answered_status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return stumbled or error.answered_code in _PASSING


def submit(client: Client, patience: Patience, request: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Sends a request until its answer is known; one task, however often it had to be sent."""
    while True:
        try:
            return client.post("/v1/responses", request, {"Idempotency-Key": key})
        except (ConnectionLost, NothingListens, Answered) as error:
            outlast(error, patience, seen_before=False)
