"""A Response, or the events of its log, as a chat completion, or as its chunks. Nothing here reads or writes.

What is sent follows from the log and from the request alone, so a stream that is asked for again under its idempotency
key gives the same bytes.

A chunk can't be taken back. So a stream whose text begins anew (`on_restart: retry`) ends with an error; one that is
opened afterwards begins with the text that stands. An error is never followed by `[DONE]`: whoever sees that has the
whole text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from retoma.core import events
from retoma.core.events import encode_json
from retoma.errors import Conflict, ContextLengthExceeded
from retoma.http.errors import error_type
from retoma.http.stream import Event

DONE = "[DONE]"
_RESPONSE, _COMPLETION = "resp_", "chatcmpl-"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no completion, or no more of it. The code is the task's own, where it has one."""

    status: int
    code: str
    message: str
    param: str | None = None

    def wire(self) -> dict[str, Any]:
        """The `error` of contract §5 without a request id, which would make the same stream differ each time."""
        return {"message": self.message, "type": error_type(self.status), "code": self.code, "param": self.param}


def completion_id_of(response_id: str) -> str:
    """The name of this response as a chat completion."""
    return _COMPLETION + response_id.removeprefix(_RESPONSE)


def response_id_in(completion_id: str) -> str:
    """The response of this chat completion; nothing, if this can't be the name of one."""
    return _RESPONSE + completion_id.removeprefix(_COMPLETION) if completion_id.startswith(_COMPLETION) else ""


def completion_of(response: dict[str, Any]) -> dict[str, Any]:
    """The completion that this response is; it must not be a failure."""
    message: dict[str, Any] = {"role": "assistant", "content": _text_of(response), "refusal": None, "annotations": []}
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _finish_reason(response),
    }
    return {
        **_head(response, "chat.completion"),
        "choices": [choice],
        "usage": _usage(response["usage"]),
        "metadata": response["metadata"],
    }


def failure_of(response: dict[str, Any]) -> Failure | None:
    """Why this finished response is no completion; None if it is one."""
    error: dict[str, str] | None = response["error"]
    if response["status"] == "cancelled":
        return Failure(HTTPStatus.CONFLICT, Conflict.code, f"{response['id']} was cancelled")
    if error is None:
        return None
    if error["code"] == ContextLengthExceeded.code:
        return Failure(HTTPStatus.BAD_REQUEST, error["code"], error["message"], param="messages")
    return Failure(HTTPStatus.INTERNAL_SERVER_ERROR, error["code"], error["message"])


class Chunks:
    """Events of one log in, what goes out as `data` for each of them.

    `begins_at` is the number of the event with which the text that stands begins; text before it is left out.
    """

    def __init__(self, *, include_usage: bool, begins_at: int = 0) -> None:
        self.ended = False
        """Nothing follows any more, whatever the log holds."""
        self.last_seq = 0
        self._include_usage = include_usage
        self._begins_at = begins_at
        self._has_said_something = False
        self._head: dict[str, Any] = {}

    def take(self, event: Event) -> list[Event]:
        """The messages that this event becomes, under its number."""
        seq, kind, text = event
        self.last_seq = seq
        if kind == events.CREATED:
            said = self._begin(json.loads(text)["response"])
        elif kind == events.TEXT_DELTA and seq >= self._begins_at:
            said = self._say(json.loads(text)["delta"])
        elif kind == events.QUEUED and self._has_said_something:
            said = self.fail(_begun_anew(json.loads(text)["response"]))
        elif kind in events.TERMINAL:
            said = self._end(json.loads(text)["response"])
        else:
            said = []
        return [(seq, "", data) for data in said]

    def fail(self, failure: Failure) -> list[str]:
        """Ends the stream with an error, which the openai package raises."""
        self.ended = True
        return [encode_json({"error": failure.wire()})]

    def _begin(self, response: dict[str, Any]) -> list[str]:
        self._head = _head(response, "chat.completion.chunk")
        return [self._chunk({"role": "assistant", "content": ""})]

    def _say(self, text: str) -> list[str]:
        if not text:
            return []
        self._has_said_something = True
        return [self._chunk({"content": text})]

    def _end(self, response: dict[str, Any]) -> list[str]:
        failure = failure_of(response)
        if failure is not None:
            return self.fail(failure)
        self.ended = True
        usage = [encode_json({**self._head, "choices": [], "usage": _usage(response["usage"])})]
        return [self._chunk({}, _finish_reason(response)), *(usage if self._include_usage else []), DONE]

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return encode_json({**self._head, "choices": [choice], **({"usage": None} if self._include_usage else {})})


def encode_message(message: Event) -> str:
    """One message as it is sent; the `id` is the event's number, for `GET /v1/responses/{id}?starting_after=`."""
    seq, _, data = message
    return f"id: {seq}\ndata: {data}\n\n"


def _head(response: dict[str, Any], kind: str) -> dict[str, Any]:
    return {
        "id": completion_id_of(response["id"]),
        "object": kind,
        "created": response["created_at"],
        "model": response["model"],
        "service_tier": response["service_tier"],
        "system_fingerprint": None,
    }


def _text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    )


def _finish_reason(response: dict[str, Any]) -> str:
    return "stop" if response["status"] == "completed" else "length"


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage["input_tokens_details"]["cached_tokens"], "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage["output_tokens_details"]["reasoning_tokens"],
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _begun_anew(response: dict[str, Any]) -> Failure:
    cause = response["task"]["restarts"][-1]["cause"]
    message = (
        f"the text begins anew after an interruption, so what came so far is void; {response['id']} goes on: "
        "retrieve it by this id, or send the same request again under its idempotency key"
    )
    return Failure(HTTPStatus.INTERNAL_SERVER_ERROR, cause, message)
