"""The sender of webhooks, one in each instance: claims what is due, sends it, writes what came of it.

What it protects: a message is delivered at least once, and twice only where a fault makes it unknown whether the first
time was one. So a try is committed before it is sent (transactions/outbox.py), an outcome is written only under its
try's number, and one that the store can't take now is kept until it can.

Several instances share the work: each claims what it can send at once, so that nothing waits here while its claim runs
out. Only so many tries go to one receiver at a time. A receiver that hangs holds its own few places and nobody else's,
and what waits for it is walked past, in bounded steps that begin where the last look ended.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
from collections import Counter
from datetime import UTC, datetime
from functools import partial

from standardwebhooks import Webhook

from retoma import limits
from retoma.clock import Clock
from retoma.core.webhook import MessageState, decide_verdict, parse_url
from retoma.errors import InvalidRequest, Unavailable
from retoma.failpoints import Failpoint, passing
from retoma.runtime.bridge import AsyncStore
from retoma.runtime.feed import Feed, wait_for
from retoma.runtime.webhook_client import WebhookClient
from retoma.settings import Settings
from retoma.transactions.outbox import (
    OUTBOX,
    ClaimTries,
    Due,
    Outcome,
    Try,
    claim_tries,
    keep_key,
    read_due,
    read_first_due,
    read_left_waiting,
    reconcile,
    write_outcome,
)

logger = logging.getLogger(__name__)
_LOOK_EVERY_S = 1.0
_RECONCILE_EVERY_MS = 30_000
# What a try may take beyond its time-out, commits included, before others take it for dead.
_MARGIN_MS = 5_000
_PARK_S = 2.0
_WRITE_AGAIN_S = 0.5
_WALK_ON_S = 0.05
_FIRST = (0, "")


class Webhooks:
    """Used on one event loop."""

    def __init__(self, store: AsyncStore, feed: Feed, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._feed = feed
        self._clock = clock
        self._client = WebhookClient(
            clock, timeout_s=settings.webhook_timeout_s, allow_private=settings.webhook_private
        )
        self._timeout_ms = int(settings.webhook_timeout_s * 1000)
        self._key = b""
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._places: Counter[str] = Counter()
        self._from = _FIRST
        self._reconciled_at_ms: int | None = None
        self._claiming = asyncio.Lock()
        self._stopping = False

    async def begin(self, candidate: bytes) -> None:
        """Learns the key of the service's secrets; `candidate` becomes it if there was none."""
        self._key = await self._store.transact(partial(keep_key, candidate=candidate, now_ms=self._clock.wall_ms()))

    def secret_of(self, client_id: str) -> str:
        """What the messages of this client's tasks are signed with. No client can find out another's from its own."""
        assert self._key, "asked before the start"
        return f"whsec_{base64.b64encode(hmac.digest(self._key, client_id.encode(), hashlib.sha256)).decode()}"

    async def run(self) -> None:
        """Sends for ever: when a message is released, when one comes due, when a place becomes free."""
        with self._feed.follow(OUTBOX) as changed:
            while True:
                changed.clear()
                wait_s = _LOOK_EVERY_S
                try:
                    wait_s = await self.look()
                except Unavailable as away:
                    logger.warning("webhooks wait for the store: %s", away.message)
                except Exception:
                    logger.exception("the sender of webhooks stumbled and goes on")
                await wait_for(changed, wait_s)

    async def look(self) -> float:
        """Begins every try that is due and has a place; how many seconds there is nothing to do, unless woken."""
        boot_ms = self._clock.boot_ms()
        if self._reconciled_at_ms is None or boot_ms - self._reconciled_at_ms >= _RECONCILE_EVERY_MS:
            await self._reconcile()
            self._reconciled_at_ms = boot_ms
        async with self._claiming:
            if self._stopping:
                return _LOOK_EVERY_S
            now_ms = self._clock.wall_ms()
            await self._claim(await self._pick(now_ms), now_ms)
        if self._from != _FIRST:
            return _WALK_ON_S
        first_ms = await self._store.read(read_first_due)
        left_ms = _LOOK_EVERY_S * 1000 if first_ms is None else first_ms - self._clock.wall_ms()
        # What is due and was not picked waits for a place, and a place that becomes free wakes this.
        return min(_LOOK_EVERY_S, left_ms / 1000) if left_ms > 0 else _LOOK_EVERY_S

    async def idle(self) -> None:
        """Returns when no try is under way."""
        while self._sending:
            await asyncio.wait(list(self._sending.values()))

    async def close(self) -> None:
        """Begins nothing more and gives the tries under way a moment; others stay `unconfirmed` and are repeated."""
        self._stopping = True
        async with self._claiming:  # what is being claimed is sent
            pass
        if self._sending:
            await asyncio.wait(list(self._sending.values()), timeout=_PARK_S)
        left = list(self._sending.values())
        for sending in left:
            sending.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._client.close()

    async def _reconcile(self) -> None:
        """Finds what a release without an outbox has ended or deleted."""
        after = ""
        while left := await self._store.read(partial(read_left_waiting, after=after)):
            await self._store.transact(partial(reconcile, left=left, now_ms=self._clock.wall_ms()))
            logger.info("reconciled %d webhooks of tasks that another release has ended", len(left))
            after = left[-1][0]

    async def _pick(self, now_ms: int) -> list[Due]:
        """Due messages for the places that are free, oldest first."""
        free = limits.WEBHOOK_TRIES_MAX - len(self._sending)
        places = self._places.copy()
        picked: list[Due] = []
        for _ in range(limits.WEBHOOK_LOOK_MESSAGES_MAX // limits.PAGE_ITEMS_MAX):
            if len(picked) >= free:
                break
            page = await self._store.read(partial(read_due, now_ms=now_ms, after=self._from))
            for due in page:
                place = _place_of(due.url)
                if places[place] < limits.WEBHOOK_TRIES_PER_PLACE_MAX and due.id not in self._sending:
                    places[place] += 1
                    picked.append(due)
            if len(page) < limits.PAGE_ITEMS_MAX:
                self._from = _FIRST
                return picked[:free]
            self._from = (page[-1].at_ms, page[-1].id)
        if len(picked) >= free:
            self._from = _FIRST
        return picked[:free]

    async def _claim(self, picked: list[Due], now_ms: int) -> None:
        if not picked:
            return
        command = ClaimTries([due.id for due in picked], now_ms, now_ms + self._timeout_ms + _MARGIN_MS)
        for claimed in await self._store.transact(partial(claim_tries, command=command)):
            self._begin_try(claimed)

    def _begin_try(self, claimed: Try) -> None:
        place = _place_of(claimed.url)
        self._places[place] += 1
        sending = asyncio.create_task(self._try(claimed), name=f"webhook {claimed.message_id}")
        self._sending[claimed.message_id] = sending
        sending.add_done_callback(partial(self._over, claimed.message_id, place))

    def _over(self, message_id: str, place: str, _: asyncio.Task[None]) -> None:
        del self._sending[message_id]
        self._places[place] -= 1
        if not self._places[place]:
            del self._places[place]
        self._feed.wake([OUTBOX])

    async def _try(self, claimed: Try) -> None:
        try:
            if self._clock.wall_ms() + self._timeout_ms > claimed.again_at_ms:
                logger.warning("the webhook %s comes due again: its claim took too long", claimed.message_id)
                return
            await self._send(claimed)
        except Unavailable as away:
            logger.warning("the webhook %s comes due again: %s", claimed.message_id, away.message)
        except Exception:
            logger.exception("the webhook %s stumbled and comes due again", claimed.message_id)

    async def _send(self, claimed: Try) -> None:
        at = datetime.fromtimestamp(self._clock.wall_ms() // 1000, UTC)
        signature = Webhook(self.secret_of(claimed.client_id)).sign(claimed.message_id, at, claimed.body)
        headers = {
            "webhook-id": claimed.message_id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": signature,
        }
        answer = await self._client.post(claimed.url, headers, claimed.body)
        passing(Failpoint.OUTBOX_SENT)
        now_ms = self._clock.wall_ms()
        verdict = decide_verdict(claimed.body, claimed.number, answer, now_ms)
        await self._write(Outcome(claimed.message_id, claimed.number, verdict, now_ms))
        if verdict.state is MessageState.FAILED:
            logger.warning("the webhook %s is given up: %s", claimed.message_id, verdict.last_answer)

    async def _write(self, outcome: Outcome) -> None:
        """Keeps trying while the store is away; if others have claimed the message by then, nothing is written."""
        while True:
            try:
                await self._store.transact(partial(write_outcome, command=outcome))
            except Unavailable as away:
                if self._stopping:
                    raise
                logger.warning("the outcome of the webhook %s waits: %s", outcome.message_id, away.message)
                await asyncio.sleep(_WRITE_AGAIN_S)
            else:
                return


def _place_of(url: str) -> str:
    """Which receivers count as one; a URL that another release has let pass is a place of its own."""
    try:
        return parse_url(url).place
    except InvalidRequest:
        return url
