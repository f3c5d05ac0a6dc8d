"""The sender of webhooks against receivers that behave badly in every way that was thought of. Time is moved."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from retoma import limits
from retoma.core.task import State
from retoma.core.webhook import RETRY_MS_MAX, message_id
from retoma.errors import StoreFull
from retoma.runtime import webhooks as webhooks_module
from retoma.runtime.bridge import AsyncStore
from retoma.runtime.feed import Feed
from retoma.runtime.webhooks import Webhooks
from retoma.settings import Settings
from retoma.store.rows import MessageRow
from retoma.transactions import outbox
from tests.runtime.world import FullableStore
from tests.support.clock import ManualClock
from tests.support.receiver import (
    Receiver,
    answer,
    drip_body,
    drip_headers,
    endless_body,
    hang_then,
    hang_up,
    in_turn,
    nonsense,
)
from tests.support.stores import new_file
from tests.support.world import World

T = TypeVar("T")
BOUND_S = 30.0
CLIENT = "cli_1"
QUICK_S = 0.3


class Sender:
    """The sender of one instance, a store with a clock, and what a test asks of them."""

    def __init__(self, folder: Path, store: FullableStore, settings: dict[str, Any]) -> None:
        self.store = store
        self.clock = ManualClock(wall_ms=time.time_ns() // 1_000_000)
        self.world = World(store, self.clock)
        feed = Feed()
        self.bridge = AsyncStore(store, feed)
        chosen = Settings(data_dir=folder, **{"webhook_private": True, "webhook_timeout_s": BOUND_S} | settings)
        self.webhooks = Webhooks(self.bridge, feed, self.clock, chosen)

    async def ended(self, url: str, count: int = 1) -> list[str]:
        """New tasks that have ended and whose messages are due."""

        def make() -> list[str]:
            return [self.world.in_state(State.COMPLETED, webhook=url).id for _ in range(count)]

        return await asyncio.to_thread(make)

    async def message(self, task_id: str) -> MessageRow:
        return await asyncio.to_thread(self.world.message, task_id)

    async def turn(self) -> None:
        """One look, and the end of the tries that it began."""
        async with asyncio.timeout(BOUND_S):
            await self.webhooks.look()
            await self.webhooks.idle()

    async def next_turn(self, task_id: str) -> MessageRow:
        """Moves the time to the message's next try, and makes it; the message afterwards."""
        message = await self.message(task_id)
        assert message.next_at_ms is not None
        self.clock.advance(max(0, message.next_at_ms - self.clock.wall_ms()))
        await self.turn()
        return await self.message(task_id)

    @property
    def secret(self) -> str:
        return self.webhooks.secret_of(CLIENT)


@asynccontextmanager
async def sending(folder: Path, **settings: Any) -> AsyncGenerator[Sender]:
    store = FullableStore(new_file(folder))
    sender = Sender(folder, store, settings)
    await sender.webhooks.begin(b"k" * 32)
    try:
        yield sender
        store.full = False
        assert await asyncio.to_thread(sender.world.problems) == []
    finally:
        store.full = False
        await sender.webhooks.close()
        await sender.bridge.close()


async def until(condition: Callable[[], T], what: str) -> T:
    """The condition's first true value."""
    async with asyncio.timeout(BOUND_S):
        while not (value := condition()):  # noqa: ASYNC110 - told by another thread
            await asyncio.sleep(0.002)
    assert value, what
    return value


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await scene()

    asyncio.run(run())


# What is sent


@pytest.mark.requirement("S-007")
def test_a_message_is_signed_for_its_client_and_says_how_its_task_ended(tmp_path: Path) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(f"{receiver.url}/a%2Fb?token=1&x=~")
            await sender.turn()
            (delivery,) = receiver.deliveries
            message = await sender.message(task_id)
            assert (message.state, message.tries, message.last_answer) == ("delivered", 1, "HTTP 200")
            event = delivery.verify(sender.secret)
            assert (event.type, event.id, event.data.id) == ("response.completed", message_id(task_id), task_id)
            assert delivery.id == message.id
            assert delivery.body == message.body.encode()
            assert (delivery.method, delivery.path) == ("POST", "/hook/a%2Fb?token=1&x=~")
            assert delivery.headers["host"] == f"127.0.0.1:{receiver.port}"
            assert delivery.headers["content-type"] == "application/json"
            assert delivery.headers["user-agent"].startswith("Retoma/")
            assert delivery.headers["webhook-timestamp"] == str(sender.clock.wall_ms() // 1000)
            with pytest.raises(Exception, match="signature"):
                delivery.verify(sender.webhooks.secret_of("cli_2"))

    with Receiver() as receiver:
        play(scene)


@pytest.mark.requirement("S-007", "S-007b")
def test_a_receiver_that_is_down_and_then_fails_gets_the_same_message_once_it_is_well(tmp_path: Path) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(receiver.url)
            await sender.turn()
            down = await sender.message(task_id)
            assert (down.state, down.tries) == ("pending", 1)
            assert down.last_answer == "not sent: nobody takes the connection"
            receiver.start()
            failing = await sender.next_turn(task_id)
            assert (failing.state, failing.tries, failing.last_answer) == ("pending", 2, "HTTP 500")
            well = await sender.next_turn(task_id)
            assert (well.state, well.tries, well.next_at_ms) == ("delivered", 3, None)
            await sender.turn()
            first, second = receiver.deliveries
            assert (first.id, first.body) == (second.id, second.body)
            # Minutes have passed between the two, and each is fresh.
            assert int(second.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"]) > 250
            second_secret = sender.secret
        first.verify(second_secret)

    with Receiver(in_turn(answer(500), answer(200))) as receiver:
        receiver.stop()
        receiver.free.clear()
        play(scene)


def test_a_redirect_is_an_answer_like_any_other_and_not_followed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(receiver.url)
            for status in (301, 302, 303, 307, 308):
                receiver.behaviour = answer(status, Location=other.url)
                message = await sender.next_turn(task_id)
                assert message.state == "pending"
                assert message.last_answer == f"HTTP {status}; redirects are not followed"
            assert len(receiver.deliveries) == 5
            assert other.deliveries == []

    with Receiver() as receiver, Receiver() as other:
        play(scene)


def test_a_receiver_that_says_gone_is_never_asked_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(receiver.url)
            await sender.turn()
            message = await sender.message(task_id)
            assert (message.state, message.last_answer, message.next_at_ms) == ("failed", "HTTP 410", None)
            sender.clock.advance(RETRY_MS_MAX)
            await sender.turn()
            assert len(receiver.deliveries) == 1

    with Receiver(answer(410)) as receiver:
        play(scene)


# Answers that don't come


@pytest.mark.requirement("S-007", "S-007d")
def test_an_answer_after_the_time_out_is_none_and_the_message_comes_again_under_its_id(tmp_path: Path) -> None:
    async def scene() -> None:
        async with sending(tmp_path, webhook_timeout_s=QUICK_S) as sender:
            (task_id,) = await sender.ended(receiver.url)
            await sender.turn()
            hung = await sender.message(task_id)
            assert (hung.state, hung.tries, hung.last_answer) == ("unconfirmed", 1, "no answer within 0.3 s")
            assert hung.next_at_ms is not None
            receiver.free.set()  # it answers 200 now, and nobody listens
            await sender.turn()
            assert await sender.message(task_id) == hung
            assert (await sender.next_turn(task_id)).state == "delivered"
            first, second = receiver.deliveries
            assert (first.id, first.body) == (second.id, second.body)

    with Receiver(in_turn(hang_then(answer(200)), answer(200))) as receiver:
        play(scene)


@pytest.mark.requirement("S-007", "S-007d")
@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (hang_up, "the connection broke off before an answer"),
        (nonsense, "the connection broke off before an answer"),
        (drip_headers, "no answer within 0.3 s"),
    ],
)
def test_a_message_that_was_sent_and_not_answered_is_unconfirmed(tmp_path: Path, behaviour: Any, said: str) -> None:
    async def scene() -> None:
        async with sending(tmp_path, webhook_timeout_s=QUICK_S) as sender:
            (task_id,) = await sender.ended(receiver.url)
            await sender.turn()
            message = await sender.message(task_id)
            assert (message.state, message.last_answer) == ("unconfirmed", said)

    with Receiver(behaviour) as receiver:
        play(scene)


@pytest.mark.parametrize("behaviour", [drip_body, endless_body])
def test_the_status_is_the_answer_and_its_body_is_dropped_after_a_moment(tmp_path: Path, behaviour: Any) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(receiver.url)
            await sender.turn()
            assert (await sender.message(task_id)).state == "delivered"
        # What lies in the buffers of the line, beyond what was read.
        assert receiver.sent_bytes[0] < limits.WEBHOOK_ANSWER_BYTES_MAX + 64 * 1024 * 1024

    with Receiver(behaviour) as receiver:
        play(scene)


def test_a_status_that_came_before_the_time_ran_out_counts(tmp_path: Path) -> None:
    async def scene() -> None:
        async with sending(tmp_path, webhook_timeout_s=QUICK_S) as sender:
            (task_id,) = await sender.ended(receiver.url)
            await sender.turn()
            assert (await sender.message(task_id)).state == "delivered"

    with Receiver(drip_body) as receiver:
        play(scene)


@pytest.mark.parametrize("form", ["seconds", "date", "nonsense"])
def test_a_receiver_says_when_it_will_be_back(tmp_path: Path, form: str) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            back_s = sender.clock.wall_ms() // 1000 + 600
            header = {"seconds": "600", "date": formatdate(back_s, usegmt=True), "nonsense": "soon"}[form]
            receiver.behaviour = answer(503, Retry_After=header)
            (task_id,) = await sender.ended(receiver.url)
            await sender.turn()
            message = await sender.message(task_id)
            assert message.next_at_ms is not None
            wait_s = (message.next_at_ms - sender.clock.wall_ms()) / 1000
            assert wait_s == pytest.approx(5 if form == "nonsense" else 600, abs=1)

    with Receiver() as receiver:
        play(scene)


# What is not carried along


def test_no_cookie_and_no_proxy_stand_between_the_service_and_a_receiver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(receiver.url)
            await sender.turn()
            await sender.next_turn(task_id)
            assert len(receiver.deliveries) == 2
            assert [delivery.headers.get("cookie") for delivery in receiver.deliveries] == [None, None]
            assert all("authorization" not in delivery.headers for delivery in receiver.deliveries)
            assert proxy.deliveries == []

    with Receiver(answer(500, Set_Cookie="session=1; Path=/")) as receiver, Receiver() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        play(scene)


def test_nothing_that_is_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> str:
        async with sending(tmp_path, webhook_timeout_s=QUICK_S) as sender:
            for path in ("/gone?token=hidden", "/hang?token=hidden"):
                (task_id,) = await sender.ended(f"http://127.0.0.1:{receiver.port}{path}")
                await sender.turn()
            sender.store.full = True
            with pytest.raises(StoreFull):
                await sender.next_turn(task_id)
            sender.store.full = False
            return sender.secret

    caplog.set_level(logging.INFO)
    with Receiver(in_turn(answer(410), hang_up)) as receiver:
        secret = asyncio.run(scene())
        signatures = [delivery.headers["webhook-signature"] for delivery in receiver.deliveries]
    assert "is given up: HTTP 410" in caplog.text
    for hidden in ("hidden", secret, secret.removeprefix("whsec_"), *signatures):
        assert hidden not in caplog.text


# Addresses


def resolver(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Stands in for DNS: one answer for each question, the last one for all that follow; the names asked for."""
    asked: list[str] = []

    def look_up(host: str, port: int, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        asked.append(host)
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in answers[min(len(asked), len(answers)) - 1]
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::1"], ["::ffff:127.0.0.1"], ["169.254.169.254"]],
)
def test_a_name_with_a_private_address_is_refused_and_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    async def scene() -> None:
        async with sending(tmp_path, webhook_private=False) as sender:
            (task_id,) = await sender.ended(f"http://innocent.example:{receiver.port}/")
            await sender.turn()
            message = await sender.message(task_id)
            assert (message.state, message.tries) == ("pending", 1)
            assert message.last_answer == (
                "not sent: the host has a private address, which the setting webhook_private would allow"
            )
            assert receiver.deliveries == []

    with Receiver() as receiver:
        resolver(monkeypatch, addresses)
        play(scene)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "0"])
def test_a_private_address_that_was_accepted_under_another_setting_is_refused_too(tmp_path: Path, host: str) -> None:
    async def scene() -> None:
        async with sending(tmp_path, webhook_private=False) as sender:
            (task_id,) = await sender.ended(f"http://{host}:{receiver.port}/")
            await sender.turn()
            assert "private address" in (await sender.message(task_id)).last_answer
            assert receiver.deliveries == []

    with Receiver() as receiver:
        play(scene)


def test_the_connection_goes_to_the_address_that_was_checked_and_the_name_stays_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that would lead somewhere else at the next question is asked for once."""

    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(f"http://Rebinding.example:{receiver.port}/")
            await sender.turn()
            assert (await sender.message(task_id)).state == "delivered"
            assert asked == ["rebinding.example"]
            assert receiver.deliveries[0].headers["host"] == f"rebinding.example:{receiver.port}"
            assert other.deliveries == []

    with Receiver() as receiver, Receiver(host="127.0.0.2", port=receiver.port) as other:
        asked = resolver(monkeypatch, ["127.0.0.1"], ["127.0.0.2"])
        play(scene)


def test_where_one_address_of_a_name_is_dead_the_next_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(f"http://two.example:{receiver.port}/")
            await sender.turn()
            assert (await sender.message(task_id)).state == "delivered"

    with Receiver() as receiver:
        resolver(monkeypatch, ["127.0.0.3", "127.0.0.1"])
        play(scene)


def test_a_name_that_leads_nowhere_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended("http://nobody.example/")
            await sender.turn()
            message = await sender.message(task_id)
            assert (message.state, message.last_answer) == (
                "pending",
                "not sent: the host nobody.example can't be resolved",
            )

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    play(scene)


def self_signed(folder: Path, name: str) -> Path:
    """A certificate for this name, with its key."""
    pem = folder / "receiver.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName=DNS:{name}", "-keyout", str(pem), "-out", str(folder / "certificate.pem")]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=BOUND_S)
    except FileNotFoundError:
        assert not os.environ.get("CI"), "openssl is missing in CI"
        pytest.skip("openssl isn't installed")
    pem.write_bytes(pem.read_bytes() + (folder / "certificate.pem").read_bytes())
    return pem


@pytest.mark.parametrize("name", ["receiver.example", "other.example"])
def test_a_certificate_must_be_the_names_though_the_connection_goes_to_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(f"https://receiver.example:{receiver.port}/")
            await sender.turn()
            message = await sender.message(task_id)
            if name == "receiver.example":
                assert message.state == "delivered"
                assert receiver.server_names == ["receiver.example"]
            else:
                assert (message.state, receiver.deliveries) == ("pending", [])
                assert message.last_answer.startswith("not sent: no TLS connection: ")

    pem = self_signed(tmp_path, name)
    create = httpx.create_ssl_context

    def trusts_it_too(**options: Any) -> Any:
        context = create(**options)
        context.load_verify_locations(str(tmp_path / "certificate.pem"))
        return context

    monkeypatch.setattr(httpx, "create_ssl_context", trusts_it_too)
    with Receiver(certificate=pem) as receiver:
        resolver(monkeypatch, ["127.0.0.1"])
        play(scene)


# Many at once


def test_a_receiver_that_hangs_holds_its_own_places_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More messages wait for it than one look goes through; those for others lie behind them and are sent first."""
    monkeypatch.setattr(limits, "WEBHOOK_LOOK_MESSAGES_MAX", limits.PAGE_ITEMS_MAX)

    async def scene() -> None:
        async with sending(tmp_path) as sender:
            stuck = await sender.ended(hanging.url, limits.PAGE_ITEMS_MAX + 5)
            well = await sender.ended(good.url, 6)
            running = asyncio.create_task(sender.webhooks.run())
            await until(lambda: len(good.deliveries) == len(well), "the others to be served")
            places = limits.WEBHOOK_TRIES_PER_PLACE_MAX
            await until(lambda: len(hanging.deliveries) == places, "its places to be taken")
            await sender.webhooks.look()
            assert len(hanging.deliveries) == places
            assert {delivery.id for delivery in good.deliveries} == set(map(message_id, well))
            hanging.free.set()
            await until(lambda: len(hanging.deliveries) == len(stuck), "the rest")
            assert {delivery.id for delivery in hanging.deliveries} == set(map(message_id, stuck))
            await sender.webhooks.idle()
            running.cancel()

    with Receiver(hang_then(answer(200))) as hanging, Receiver() as good:
        play(scene)


def test_there_are_only_so_many_tries_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBHOOK_TRIES_MAX", 6)

    async def scene() -> None:
        async with sending(tmp_path) as sender:
            for receiver in (first, second):
                await sender.ended(receiver.url, 5)
            await sender.webhooks.look()
            await until(lambda: len(first.deliveries) + len(second.deliveries) == 6, "six tries")
            await sender.webhooks.look()
            claimed = await asyncio.to_thread(sender.world.store.read, partial(_count, state="unconfirmed"))
            assert claimed == 6  # what can't be sent now is not counted either
            first.free.set()
            second.free.set()
            await sender.webhooks.idle()
            await sender.turn()
            await sender.turn()
            assert await asyncio.to_thread(sender.world.store.read, partial(_count, state="delivered")) == 10

    with Receiver(hang_then(answer(200))) as first, Receiver(hang_then(answer(200))) as second:
        play(scene)


def _count(tx: Any, state: str) -> int:
    return len(outbox.read_messages(tx, state=state, client_id="", before="", limit=1_000))


# Faults on this side


def test_a_message_is_sent_as_soon_as_its_end_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks_module, "_LOOK_EVERY_S", 3600.0)

    async def scene() -> None:
        async with sending(tmp_path) as sender:
            running = asyncio.create_task(sender.webhooks.run())
            for count in (1, 2, 3):
                await sender.ended(receiver.url)
                await until(lambda count=count: len(receiver.deliveries) == count, "the message to arrive")
                await sender.webhooks.idle()
            running.cancel()

    with Receiver() as receiver:
        play(scene)


@pytest.mark.requirement("S-005", "S-005c")
def test_an_outcome_that_the_store_can_not_take_is_kept_and_the_message_is_not_sent_twice(tmp_path: Path) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(receiver.url)
            await sender.webhooks.look()
            await until(lambda: receiver.deliveries, "the message to arrive")
            sender.store.full = True
            receiver.free.set()
            await until(lambda: sender.store.refused >= 1, "the outcome to be refused")
            sender.clock.advance(3_600_000)  # the message has come due again meanwhile
            sender.store.full = False
            await sender.turn()
            await sender.turn()
            assert (await sender.message(task_id)).state == "delivered"
            assert len(receiver.deliveries) == 1

    with Receiver(hang_then(answer(200))) as receiver:
        play(scene)


@pytest.mark.requirement("S-005", "S-005a")
def test_nothing_is_sent_while_a_try_can_not_be_counted(tmp_path: Path) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(receiver.url)
            sender.store.full = True
            with pytest.raises(StoreFull):
                await sender.turn()
            assert receiver.deliveries == []
            sender.store.full = False
            await sender.turn()
            message = await sender.message(task_id)
            assert (message.state, message.tries, len(receiver.deliveries)) == ("delivered", 1, 1)

    with Receiver() as receiver:
        play(scene)


@pytest.mark.requirement("S-006", "S-006a")
def test_a_try_whose_counting_took_too_long_is_left_to_whoever_finds_it_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer could come after others have begun to send the same message."""

    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(receiver.url)
            submit = sender.store.submit

            def slowly(function: Any, settle: Any) -> None:
                sender.clock.advance(6_000)
                submit(function, settle)

            monkeypatch.setattr(sender.store, "submit", slowly)
            await sender.turn()
            monkeypatch.undo()
            message = await sender.message(task_id)
            assert (message.state, message.tries, receiver.deliveries) == ("unconfirmed", 1, [])
            assert (await sender.next_turn(task_id)).state == "delivered"
            assert len(receiver.deliveries) == 1

    with Receiver() as receiver:
        play(scene)


def test_an_orderly_stop_waits_for_the_answer_that_is_on_its_way(tmp_path: Path) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(receiver.url)
            await sender.webhooks.look()
            await until(lambda: receiver.deliveries, "the message to arrive")
            closing = asyncio.create_task(sender.webhooks.close())
            await asyncio.sleep(0)
            receiver.free.set()
            await closing
            message = await sender.message(task_id)
            assert (message.state, message.tries) == ("delivered", 1)
            await sender.ended(receiver.url)
            await sender.webhooks.look()
            await sender.webhooks.idle()
            assert len(receiver.deliveries) == 1  # a stopped sender begins nothing

    with Receiver(hang_then(answer(200))) as receiver:
        play(scene)


@pytest.mark.requirement("S-007", "S-007b")
def test_a_stop_that_can_not_wait_leaves_the_message_unconfirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks_module, "_PARK_S", 0.05)

    async def scene() -> None:
        async with sending(tmp_path) as sender:
            (task_id,) = await sender.ended(receiver.url)
            await sender.webhooks.look()
            await until(lambda: receiver.deliveries, "the message to arrive")
            await sender.webhooks.close()
            message = await sender.message(task_id)
            assert (message.state, message.tries) == ("unconfirmed", 1)
            assert message.next_at_ms is not None

    with Receiver(hang_then(answer(200))) as receiver:
        play(scene)


@pytest.mark.requirement("S-004", "S-004b")
def test_what_an_older_release_has_ended_is_found_and_sent(tmp_path: Path) -> None:
    async def scene() -> None:
        async with sending(tmp_path) as sender:
            await sender.turn()
            task_id = await asyncio.to_thread(sender.world.left_waiting, receiver.url)
            await sender.turn()
            assert ((await sender.message(task_id)).state, receiver.deliveries) == ("waiting", [])
            sender.clock.advance(60_000)
            await sender.turn()
            assert (await sender.message(task_id)).state == "delivered"
            assert receiver.deliveries[0].verify(sender.secret).data.id == task_id

    with Receiver() as receiver:
        play(scene)
