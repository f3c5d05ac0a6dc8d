"""Webhooks: the message that a task's end makes, where it may go, when it is tried again, what an answer to it means.

A message has one id for all of its tries, derived from its task's id, and one body, written once. The tries follow what
the Standard Webhooks specification recommends; none comes later than `WEBHOOK_RETRY_HOURS_MAX` after the task's end.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from enum import StrEnum

from retoma.core.events import TERMINAL_BY_STATUS, encode_json
from retoma.errors import InvalidRequest
from retoma.limits import WEBHOOK_RETRY_HOURS_MAX, WEBHOOK_URL_CHARS_MAX

# Seconds from a try without success to the next, by how many tries there were; the last one repeats.
SCHEDULE_S = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
RETRY_MS_MAX = WEBHOOK_RETRY_HOURS_MAX * 3_600_000
JITTER = 0.1
_RETRY_AFTER_MS_MAX = 86_400_000
_ANSWER_CHARS_MAX = 200
_OK, _REDIRECT, _BAD_REQUEST, _GONE = 200, 300, 400, 410
_PORTS = {"http": 80, "https": 443}
_PORT_MAX = 65_535
_HOST_CHARS_MAX = 253

# Nothing but what every parser of URLs reads in one way: no user, no fragment, no backslash, nothing outside of ASCII.
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_URL = re.compile(
    rf"(?P<scheme>https?)://(?:(?P<name>{_LABEL}(?:\.{_LABEL})*)\.?|\[(?P<literal>[0-9a-f:.]+)\])(?::(?P<port>\d{{1,5}}))?"
    r"(?P<path>/[\w.~!$&'()*+,;=:@%/-]*)?(?P<query>\?[\w.~!$&'()*+,;=:@%/?-]*)?",
    re.ASCII | re.IGNORECASE,
)


class MessageState(StrEnum):
    """Where a message is in its life."""

    WAITING = "waiting"
    """Its task has not ended."""
    PENDING = "pending"
    """To be sent, for the first time or again after an answer that was no success."""
    UNCONFIRMED = "unconfirmed"
    """Sent, perhaps received: nobody knows, because no answer came. It is sent again."""
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Url:
    """Where a message goes, taken apart."""

    scheme: str
    host: str
    """A name or an address, in lower case, without brackets and without a dot at its end."""
    port: int
    path: str
    query: str
    """With its question mark; it may hold a secret of the receiver."""

    @property
    def place(self) -> str:
        """As the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """As people and logs may see it."""
        return f"{self.scheme}://{self.place}{self.path}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one try. Without a status there was no answer."""

    text: str
    status: int | None = None
    sent: bool = True
    """False: nothing of the message can have reached the receiver."""
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a message becomes."""

    state: MessageState
    next_at_ms: int | None
    last_answer: str


def parse_url(text: str) -> Url:
    """Raises InvalidRequest, which names the field of the request, for anything but a plain http or https URL."""
    if len(text) > WEBHOOK_URL_CHARS_MAX:
        raise InvalidRequest(f"webhook.url may have {WEBHOOK_URL_CHARS_MAX} characters at most", param="webhook")
    found = _URL.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            "webhook.url must be an http or https URL of plain ASCII, with a host and without a user or a fragment",
            param="webhook",
        )
    scheme, port = found["scheme"].lower(), int(found["port"] or 0)
    host = (found["name"] or found["literal"]).lower()
    if found["port"] is not None and not 0 < port <= _PORT_MAX:
        raise InvalidRequest(f"the port of webhook.url must be from 1 to {_PORT_MAX}", param="webhook")
    if len(host) > _HOST_CHARS_MAX:
        raise InvalidRequest("the host of webhook.url is too long to be one", param="webhook")
    return Url(scheme, host, port or _PORTS[scheme], found["path"] or "/", found["query"] or "")


def message_id(task_id: str) -> str:
    """The webhook-id of the task's one message."""
    return f"evt_{task_id.partition('_')[2]}"


def message_body(task_id: str, status: str, ended_at_ms: int) -> str:
    """What is sent, byte for byte at every try. `status` is the response's, in its terminal event."""
    return encode_json(
        {
            "id": message_id(task_id),
            "object": "event",
            "type": TERMINAL_BY_STATUS[status],
            "created_at": ended_at_ms // 1000,
            "data": {"id": task_id},
        }
    )


def decide_verdict(body: str, tries: int, answer: Answer, now_ms: int) -> Verdict:
    """What the answer to the latest of `tries` tries means.

    Only a 2xx is a success. A message fails when its receiver says that it is gone (410) or when the retries end; until
    then one that was sent and not answered is `unconfirmed`, and every other one `pending`. A redirect isn't followed:
    a receiver must not be able to send the service somewhere else.
    """
    text = answer.text[:_ANSWER_CHARS_MAX]
    if answer.status is not None and _OK <= answer.status < _REDIRECT:
        return Verdict(MessageState.DELIVERED, None, text)
    if answer.status == _GONE:
        return Verdict(MessageState.FAILED, None, text)
    if answer.status is not None and _REDIRECT <= answer.status < _BAD_REQUEST:
        text = f"{text}; redirects are not followed"
    last_at_ms = _ended_at_ms(body) + RETRY_MS_MAX
    if now_ms >= last_at_ms:
        return Verdict(MessageState.FAILED, None, f"{text}; the retries have ended")
    unknown = answer.sent and answer.status is None
    state = MessageState.UNCONFIRMED if unknown else MessageState.PENDING
    delay_ms = max(retry_delay_ms(body, tries), min(answer.retry_after_ms or 0, _RETRY_AFTER_MS_MAX))
    return Verdict(state, min(now_ms + delay_ms, last_at_ms), text)


def retry_delay_ms(body: str, tries: int) -> int:
    """From the latest of `tries` tries to the next, a tenth more or less: receivers that come back aren't overrun.

    Derived from the message and the number, so that it is the same whoever asks.
    """
    assert tries > 0
    digest = hashlib.sha256(f"{tries} {body}".encode()).digest()
    share = int.from_bytes(digest[:8]) / 2**64
    delay_s = SCHEDULE_S[min(tries, len(SCHEDULE_S)) - 1]
    return round(delay_s * 1000 * (1 - JITTER + 2 * JITTER * share))


def _ended_at_ms(body: str) -> int:
    return json.loads(body)["created_at"] * 1000
