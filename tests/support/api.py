"""A client of the running service that remembers every event it ever saw, so that a contradiction is noticed (I15)."""

from __future__ import annotations

import json
import weakref
from collections.abc import Collection, Generator
from typing import Any

import httpx

from tests.support import evidence
from tests.support.service import RunningService
from tests.support.waiting import wait_for

FINISHED = ("completed", "failed", "cancelled")


class Api:
    """Talks to one data directory's service, over its restarts: give it each new process with `attach`."""

    def __init__(self, service: RunningService) -> None:
        self.seen: dict[tuple[str, int], str] = {}
        evidence.keep("seen.txt", lambda: "\n".join(f"{task} {seq} {data}" for (task, seq), data in self.seen.items()))
        self.attach(service)

    def attach(self, service: RunningService) -> None:
        self.service = service
        self.http = httpx.Client(base_url=service.url, headers=service.headers, timeout=60)
        weakref.finalize(self, self.http.close)

    def create(self, prompt: str = "tell me about the sea", **fields: Any) -> str:
        """The id of a new background response of the model `scripted`."""
        headers = {"Idempotency-Key": fields.pop("key")} if "key" in fields else {}
        body = {"model": "scripted", "input": prompt, "background": True, "temperature": 0, "seed": 1, **fields}
        reply = self.http.post("/v1/responses", json=body, headers=headers)
        assert reply.status_code in {200, 202}, reply.text
        return reply.json()["id"]

    def get(self, response_id: str) -> dict[str, Any]:
        reply = self.http.get(f"/v1/responses/{response_id}")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def cancel(self, response_id: str) -> dict[str, Any]:
        reply = self.http.post(f"/v1/responses/{response_id}/cancel")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def stream(self, response_id: str, after: int = -1) -> Generator[tuple[int, dict[str, Any]]]:
        """Events as they come, each checked against what was seen under its number before."""
        params = {"stream": "true"} | ({"starting_after": str(after)} if after >= 0 else {})
        with self.http.stream("GET", f"/v1/responses/{response_id}", params=params) as reply:
            assert reply.status_code == 200, reply.read()
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    yield self._note(response_id, line.removeprefix("data: "))

    def follow(self, response_id: str, after: int = -1) -> int:
        """Reads to the end of the stream, or of the service; the last number read."""
        last = after
        try:
            for seq, _ in self.stream(response_id, after):
                assert seq == last + 1, f"event {seq} came after event {last}"
                last = seq
        except (httpx.HTTPError, AssertionError) as error:
            if isinstance(error, AssertionError):
                raise
        return last

    def events(self, response_id: str) -> list[dict[str, Any]]:
        """The whole log so far."""
        page = self.http.get(f"/v1/tasks/{response_id}/events", params={"limit": 1000}).json()
        assert not page["has_more"]
        assert [event["sequence_number"] for event in page["data"]] == list(range(len(page["data"])))
        return page["data"]

    def wait_state(self, response_id: str, states: Collection[str], bound_s: float = 30) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            found = self.get(response_id)
            return found if found["task"]["state"] in states else None

        found = wait_for(reached, f"{response_id} to be {' or '.join(states)}", bound_s)
        assert found is not None
        return found

    def wait_finished(self, response_id: str, bound_s: float = 60) -> dict[str, Any]:
        return self.wait_state(response_id, FINISHED, bound_s)

    def wait_tokens(self, response_id: str, tokens: int) -> int:
        """Waits until so many output tokens are committed; how many there are then."""

        def enough() -> int:
            found = self.http.get(f"/v1/tasks/{response_id}").json()["output_tokens"]
            return found if found >= tokens else 0

        return wait_for(enough, f"{tokens} tokens of {response_id}")

    @property
    def instance(self) -> str:
        """The present name of the instance that answers."""
        return self.http.get("/v1/service").json()["instance"]

    def create_here(self) -> str:
        """A new response that this very instance works on; one that another was quicker to claim is cancelled."""
        while True:
            task = self.create()
            self.wait_tokens(task, 1)
            if self.get(task)["task"]["instance"] == self.instance:
                return task
            self.cancel(task)

    def _note(self, response_id: str, data: str) -> tuple[int, dict[str, Any]]:
        event = json.loads(data)
        seq = event["sequence_number"]
        before = self.seen.setdefault((response_id, seq), data)
        assert before == data, f"event {seq} was {before} and is {data} now"
        return seq, event


def text_of(response: dict[str, Any]) -> str:
    """The output text of a Response."""
    return "".join(part["text"] for item in response["output"] for part in item["content"])
