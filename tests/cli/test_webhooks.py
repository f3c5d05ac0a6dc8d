"""`retoma webhooks`: what it prints, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tests.support.api import Api
from tests.support.command import run_retoma
from tests.support.receiver import Receiver, answer, in_turn
from tests.support.service import RunningService, start_service
from tests.support.waiting import wait_for

ENV = {"RETOMA_SCRIPTED_TOKENS": "4", "RETOMA_WEBHOOK_PRIVATE": "yes"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with start_service(tmp_path_factory.mktemp("service") / "data", env=ENV) as running:
        yield running


@pytest.fixture(scope="module")
def at(service: RunningService) -> list[str]:
    return ["--url", service.url, "--data-dir", str(service.data_dir)]


def test_webhooks_are_listed_with_what_became_of_them(service: RunningService, at: list[str]) -> None:
    with Receiver(in_turn(answer(200), answer(410), answer(500))) as receiver:
        api = Api(service)
        made: list[str] = []
        for number in range(3):
            made.append(api.create(webhook={"url": f"{receiver.url}?token=hidden"}))
            wait_for(lambda number=number: len(receiver.deliveries) > number, "the webhook to arrive")
        wait_for(lambda: "HTTP 500" in run_retoma("webhooks", "list", *at).out, "the last answer to be noted")
        told = json.loads(run_retoma("webhooks", "list", "--json", *at).out)
        assert [(one["task"], one["state"], one["last_answer"]) for one in told] == [
            (made[2], "pending", "HTTP 500"),
            (made[1], "failed", "HTTP 410"),
            (made[0], "delivered", "HTTP 200"),
        ]
        table = run_retoma("webhooks", "list", *at).out.splitlines()
        assert table[0].split() == ["ID", "TASK", "STATE", "TRIES", "NEXT", "TRY", "LAST", "ANSWER", "URL"]
        assert all(task in line and receiver.url in line for task, line in zip(reversed(made), table[1:], strict=True))
        assert "hidden" not in "".join(table)
        assert [
            one["task"] for one in json.loads(run_retoma("webhooks", "list", "--limit", "2", "--json", *at).out)
        ] == [
            made[2],
            made[1],
        ]
        failed = run_retoma("webhooks", "list", "--state", "failed", *at).out
        assert made[1] in failed
        assert made[0] not in failed


def test_the_secret_is_the_one_that_messages_are_signed_with(service: RunningService, at: list[str]) -> None:
    secret = run_retoma("webhooks", "secret", *at).out.strip()
    assert json.loads(run_retoma("webhooks", "secret", "--json", *at).out)["secret"] == secret
    with Receiver() as receiver:
        task = Api(service).create(webhook={"url": receiver.url})
        wait_for(lambda: receiver.deliveries, "the webhook to arrive")
        delivery = receiver.deliveries[0]
    assert Webhook(secret).verify(delivery.body, delivery.headers)["data"]["id"] == task


def test_a_state_that_is_none_is_bad_usage(at: list[str]) -> None:
    assert run_retoma("webhooks", "list", "--state", "sent", *at).status == 2


def test_a_service_that_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    ended = run_retoma("webhooks", "list", "--url", "http://127.0.0.1:1", "--data-dir", str(tmp_path))
    assert ended.status == 1
    assert "nothing listens" in ended.err
