"""What a test asks of webhooks that went from a running service to a receiver."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from tests.support.api import Api
from tests.support.receiver import Delivery, Receiver
from tests.support.waiting import wait_for

# Longer than a killed sender's message takes to come due again.
DUE_AGAIN_S = 60.0


def by_message(receiver: Receiver) -> dict[str, list[Delivery]]:
    found: dict[str, list[Delivery]] = defaultdict(list)
    for delivery in list(receiver.deliveries):
        found[delivery.id].append(delivery)
    return found


def message_of(task: str) -> str:
    return f"evt_{task.partition('_')[2]}"


def listed(api: Api) -> dict[str, dict[str, Any]]:
    """Every message of the service, by task."""
    found: dict[str, dict[str, Any]] = {}
    query = {"limit": "100"}
    while True:
        page = api.http.get("/v1/webhooks", params=query).json()
        found |= {message["task"]: message for message in page["data"]}
        if not page["has_more"]:
            return found
        query["after"] = page["last_id"]


def wait_delivered(api: Api, tasks: list[str]) -> dict[str, dict[str, Any]]:
    """Returns once the service itself says so of every one."""

    def all_of_them() -> dict[str, dict[str, Any]] | None:
        found = listed(api)
        return found if all(found[task]["state"] == "delivered" for task in tasks) else None

    found = wait_for(all_of_them, "every webhook to be delivered", DUE_AGAIN_S)
    assert found is not None
    return found


def verify(receiver: Receiver, api: Api, tasks: list[str]) -> Counter[str]:
    """What arrived is what was owed; how often each message did."""
    secret = api.http.get("/v1/webhooks/secret").json()["secret"]
    arrived = by_message(receiver)
    assert arrived.keys() == set(map(message_of, tasks))
    for task in tasks:
        deliveries = arrived[message_of(task)]
        assert len({delivery.body for delivery in deliveries}) == 1
        ended = api.get(task)
        for delivery in deliveries:
            event = delivery.verify(secret)
            assert (event.type, event.data.id) == (f"response.{ended['status']}", task)
    return Counter({message: len(deliveries) for message, deliveries in arrived.items()})
