"""The clients of tools/soak.py, and the ledger of all that they were told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from random import Random  # noqa: TID251 - handed in, by a printed seed
from threading import Event, Lock
from typing import Any

import httpx

from tests.support.service import RunningService

PROMPTS = tuple(f"tell me story number {number}" for number in range(5))
POLICIES = ("resume", "resume", "resume", "retry", "fail")
PATIENCE_S = 15.0
"""A paused service answers nothing; a client goes on to another then."""
_PASSING = {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS}


@dataclass(slots=True)
class Services:
    """Where the services are now; a restarted one has another address."""

    places: list[RunningService] = field(default_factory=list[RunningService])

    def get(self, http: httpx.Client, place: int, path: str, **params: str) -> httpx.Response:
        """One request; raises httpx.HTTPError."""
        service = self.places[place]
        return http.get(f"{service.url}{path}", headers=service.headers, params=params)

    def post(self, http: httpx.Client, place: int, path: str, body: Any, **headers: str) -> httpx.Response:
        """One request; raises httpx.HTTPError."""
        service = self.places[place]
        return http.post(f"{service.url}{path}", headers={**service.headers, **headers}, json=body)


@dataclass(slots=True)
class Ledger:
    """All that any client was ever told, and what contradicted it. Used by several threads."""

    counts: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])
    sent: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Key → body, whether or not there was an answer."""
    ids: dict[str, str] = field(default_factory=dict[str, str])
    """Key → id of the acknowledged task."""
    doomed: set[str] = field(default_factory=set[str])
    """Tasks without a key, which clients may delete."""
    deleted: set[str] = field(default_factory=set[str])
    """Of those, the ones whose deletion was acknowledged, or perhaps carried out."""
    seen: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    lock: Lock = field(default_factory=Lock)

    def count(self, what: str) -> None:
        """It has happened once more."""
        with self.lock:
            self.counts[what] += 1

    def wrong(self, what: str) -> None:
        """A promise is broken."""
        with self.lock:
            self.problems.append(what)

    def acknowledge(self, key: str, task_id: str) -> None:
        """The service has said that this key stands for this task."""
        with self.lock:
            known = self.ids.setdefault(key, task_id)
        if known != task_id:
            self.wrong(f"key {key} stands for {known} and for {task_id}")

    def note(self, task_id: str, seq: int, data: str) -> None:
        """An event was seen."""
        with self.lock:
            before = self.seen.setdefault(task_id, {}).setdefault(seq, data)
        if before != data:
            self.wrong(f"event {seq} of {task_id} was {before} and is {data} now")

    def known(self) -> list[str]:
        """Tasks that were acknowledged and that nobody may have deleted."""
        with self.lock:
            return sorted({*self.ids.values(), *self.doomed} - self.deleted)

    def verify(self, http: httpx.Client, services: Services) -> None:
        """Asks for everything once more, when every task has ended."""
        texts: dict[str, str] = {}
        for task_id in self.known():
            for service in services.places:
                follow(http, service, task_id, -1, self)
            self._verify_end(task_id, services.get(http, 0, f"/v1/responses/{task_id}"), texts)
        for key, body in sorted(self.sent.items()):
            for place in range(len(services.places)):
                reply = services.post(http, place, "/v1/responses", body, **{"Idempotency-Key": key})
                if reply.is_success:
                    self.acknowledge(key, reply.json()["id"])
                else:
                    self.wrong(f"key {key}: {reply.status_code} {reply.text}")
        for task_id in self.deleted:
            reply = services.get(http, 0, f"/v1/responses/{task_id}")
            if reply.status_code not in {HTTPStatus.NOT_FOUND, HTTPStatus.OK}:
                self.wrong(f"{task_id}, deleted: {reply.status_code} {reply.text}")

    def _verify_end(self, task_id: str, reply: httpx.Response, texts: dict[str, str]) -> None:
        if reply.status_code != HTTPStatus.OK:
            self.wrong(f"{task_id} was acknowledged and is gone: {reply.status_code} {reply.text}")
            return
        response = reply.json()
        events = self.seen[task_id]
        if sorted(events) != list(range(len(events))) or f'"status":"{response["status"]}"' not in events[max(events)]:
            self.wrong(f"the log of {task_id} does not lead to its end")
        restarts = [entry for entry in response["task"]["restarts"] if entry["cause"] == "server_restarted"]
        self.counts["recovered"] += bool(restarts)
        if response["status"] != "completed":
            return
        self.counts["completed"] += 1
        self.counts["resumed"] += any(entry["resumed_at_token"] for entry in restarts)
        text = "".join(part["text"] for item in response["output"] for part in item["content"])
        prompt = response["metadata"]["prompt"]
        if texts.setdefault(prompt, text) != text:
            self.wrong(f"two texts of prompt {prompt!r} differ; one is that of {task_id}")


def follow(http: httpx.Client, service: RunningService, task_id: str, after: int, ledger: Ledger) -> int:
    """Reads a stream to its end, or as far as it comes; the last number. Raises httpx.HTTPError."""
    params = {"stream": "true"} | ({"starting_after": str(after)} if after >= 0 else {})
    last = after
    url = f"{service.url}/v1/responses/{task_id}"
    with http.stream("GET", url, headers=service.headers, params=params) as reply:
        if reply.status_code != HTTPStatus.OK:
            return last
        for line in reply.iter_lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                seq: int = json.loads(data)["sequence_number"]
                if seq != last + 1:
                    ledger.wrong(f"event {seq} of {task_id} came behind event {last}")
                ledger.note(task_id, seq, data)
                last = seq
    return last


class Client:
    """Does one thing after the other, on any service, and never minds that there is no answer."""

    def __init__(self, services: Services, ledger: Ledger, rng: Random, over: Event, name: str) -> None:
        self.name = name
        self._services = services
        self._ledger = ledger
        self._rng = rng
        self._over = over
        self._count = 0
        self._http = httpx.Client(timeout=PATIENCE_S)

    def run(self) -> None:
        """Until it is over."""
        acts: Mapping[Callable[[], None], int] = {
            self._create: 6,
            self._create_to_delete: 2,
            self._say_again: 3,
            self._follow: 5,
            self._cancel: 2,
            self._delete: 2,
        }
        with self._http:
            while not self._over.wait(0.25 * self._rng.random()):
                try:
                    self._rng.choices(list(acts), list(acts.values()))[0]()
                except httpx.HTTPError:
                    self._ledger.count("no answer")
                except Exception as error:  # noqa: BLE001 - a client that dies in silence would hide it
                    self._ledger.wrong(f"{self.name}: {error!r}")

    def _place(self) -> int:
        return self._rng.randrange(len(self._services.places))

    def _body(self) -> dict[str, Any]:
        prompt = self._rng.choice(PROMPTS)
        return {
            "model": "scripted",
            "input": prompt,
            "background": True,
            "temperature": 0,
            "seed": 1,
            "on_restart": self._rng.choice(POLICIES),
            "metadata": {"prompt": prompt},
        }

    def _create(self) -> None:
        self._count += 1
        key, body = f"{self.name}-{self._count}", self._body()
        with self._ledger.lock:
            self._ledger.sent[key] = body
        self._submit(key, body)

    def _say_again(self) -> None:
        with self._ledger.lock:
            key, body = self._rng.choice(sorted(self._ledger.sent.items(), key=str) or [("", {})])
        if key:
            self._submit(key, body)

    def _submit(self, key: str, body: dict[str, Any]) -> None:
        reply = self._post("/v1/responses", body, **{"Idempotency-Key": key})
        if reply is not None:
            self._ledger.acknowledge(key, reply.json()["id"])
            self._ledger.count("replayed" if "Idempotency-Replayed" in reply.headers else "created")

    def _create_to_delete(self) -> None:
        reply = self._post("/v1/responses", self._body())
        if reply is not None:
            with self._ledger.lock:
                self._ledger.doomed.add(reply.json()["id"])

    def _follow(self) -> None:
        task_id = self._some_task()
        if task_id:
            with self._ledger.lock:
                seen = max(self._ledger.seen.get(task_id, {}), default=-1)
            service = self._services.places[self._place()]
            follow(self._http, service, task_id, self._rng.choice([-1, seen]), self._ledger)
            self._ledger.count("streamed")

    def _cancel(self) -> None:
        task_id = self._some_task()
        reply = self._post(f"/v1/responses/{task_id}/cancel", None) if task_id else None
        if reply is not None and reply.json()["status"] == "cancelled":
            self._ledger.count("cancelled")

    def _delete(self) -> None:
        with self._ledger.lock:
            left = sorted(self._ledger.doomed - self._ledger.deleted)
        if not left:
            return
        task_id = self._rng.choice(left)
        with self._ledger.lock:
            self._ledger.deleted.add(task_id)  # before it is asked for: without an answer it may be gone
        service = self._services.places[self._place()]
        reply = self._http.delete(f"{service.url}/v1/responses/{task_id}", headers=service.headers)
        if reply.is_success:
            self._ledger.count("deleted")

    def _some_task(self) -> str:
        known = self._ledger.known()
        # Mostly the newest, which are under way.
        return self._rng.choice(known[-10:] if self._rng.random() < 0.8 else known) if known else ""  # noqa: PLR2004

    def _post(self, path: str, body: Any, **headers: str) -> httpx.Response | None:
        """The answer, or None where there is a definite no that says to try again."""
        reply = self._services.post(self._http, self._place(), path, body, **headers)
        if reply.is_success:
            return reply
        if reply.status_code in _PASSING:
            self._ledger.count("try again")
        elif reply.status_code != HTTPStatus.NOT_FOUND:
            self._ledger.wrong(f"POST {path}: {reply.status_code} {reply.text}")
        return None
