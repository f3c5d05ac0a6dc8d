"""Where a webhook may go, what it says, when it is tried again, and what an answer means."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retoma.core.webhook import (
    JITTER,
    RETRY_MS_MAX,
    SCHEDULE_S,
    Answer,
    MessageState,
    Verdict,
    decide_verdict,
    message_body,
    message_id,
    parse_url,
    retry_delay_ms,
)
from retoma.errors import InvalidRequest
from retoma.limits import WEBHOOK_URL_CHARS_MAX

TASK = f"resp_{'0123456789abcdef' * 2}"
ENDED_MS = 1_700_000_000_000
BODY = message_body(TASK, "completed", ENDED_MS)
HOUR_MS = 3_600_000
UNANSWERED = Answer("no answer within 15 s")
UNSENT = Answer("not sent: nobody takes the connection", sent=False)


def http(status: int, **changes: int) -> Answer:
    return Answer(f"HTTP {status}", status, **changes)


def verdict(answer: Answer, tries: int = 1, after_ms: int = 0) -> Verdict:
    return decide_verdict(BODY, tries, answer, ENDED_MS + after_ms)


def test_a_message_is_named_after_its_task_and_says_what_the_contract_says() -> None:
    assert message_id(TASK) == f"evt_{'0123456789abcdef' * 2}"
    assert (
        f'{{"id":"{message_id(TASK)}","object":"event","type":"response.completed",'
        f'"created_at":1700000000,"data":{{"id":"{TASK}"}}}}'
    ) == BODY
    types = [json.loads(message_body(TASK, status, 0))["type"] for status in ("incomplete", "failed", "cancelled")]
    assert types == ["response.incomplete", "response.failed", "response.cancelled"]


# What an answer means


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_success_delivers_whenever_it_comes(status: int) -> None:
    assert verdict(http(status)) == Verdict(MessageState.DELIVERED, None, f"HTTP {status}")
    assert verdict(http(status), 99, 2 * RETRY_MS_MAX).state is MessageState.DELIVERED


@pytest.mark.parametrize("status", [101, 199, 300, 302, 307, 400, 401, 404, 409, 429, 500, 503, 599])
def test_every_other_answer_leaves_the_message_to_be_sent_again(status: int) -> None:
    decided = verdict(http(status))
    assert decided.state is MessageState.PENDING
    assert decided.next_at_ms == ENDED_MS + retry_delay_ms(BODY, 1)
    assert decided.last_answer.startswith(f"HTTP {status}")
    assert ("redirects are not followed" in decided.last_answer) == (300 <= status < 400)


def test_a_receiver_that_is_gone_is_not_asked_again() -> None:
    assert verdict(http(410)) == Verdict(MessageState.FAILED, None, "HTTP 410")


@pytest.mark.requirement("S-007", "S-007d")
def test_an_answer_that_never_came_is_not_called_a_failure_until_the_retries_end() -> None:
    assert verdict(UNANSWERED).state is MessageState.UNCONFIRMED
    assert verdict(UNANSWERED, 9, RETRY_MS_MAX - 1).state is MessageState.UNCONFIRMED
    ended = verdict(UNANSWERED, 10, RETRY_MS_MAX)
    assert ended == Verdict(MessageState.FAILED, None, "no answer within 15 s; the retries have ended")


def test_a_message_that_never_left_is_pending_and_not_unconfirmed() -> None:
    assert verdict(UNSENT).state is MessageState.PENDING


def test_an_answer_is_kept_at_a_bounded_length() -> None:
    assert len(verdict(Answer("x" * 10_000, 500)).last_answer) < 300


# When it is sent again


def times_of_tries(answer: Answer) -> list[int]:
    """Milliseconds after the task's end of every try of a message that always gets this answer at once."""
    times, now_ms = [0], ENDED_MS
    while (decided := decide_verdict(BODY, len(times), answer, now_ms)).next_at_ms is not None:
        assert decided.next_at_ms > now_ms
        now_ms = decided.next_at_ms
        times.append(now_ms - ENDED_MS)
    assert decided.state is MessageState.FAILED
    return times


@pytest.mark.parametrize("answer", [http(500), UNANSWERED, UNSENT])
def test_the_tries_follow_the_schedule_and_the_last_one_is_at_72_hours(answer: Answer) -> None:
    times = times_of_tries(answer)
    assert times[-1] == RETRY_MS_MAX == 72 * HOUR_MS
    for position, (earlier, later) in enumerate(pairwise(times[:-1])):
        assert abs((later - earlier) / 1000 / SCHEDULE_S[position] - 1) <= JITTER
    assert 9 <= len(times) <= 11
    assert times[1] <= 6_000


@given(st.integers(1, 100), st.text(max_size=20))
def test_the_jitter_is_within_its_bounds_and_the_same_whoever_asks(tries: int, body: str) -> None:
    delay_s = retry_delay_ms(body, tries) / 1000
    plan_s = SCHEDULE_S[min(tries, len(SCHEDULE_S)) - 1]
    assert abs(delay_s / plan_s - 1) <= JITTER + 1e-3
    assert retry_delay_ms(body, tries) == retry_delay_ms(body, tries)


def test_messages_of_one_moment_are_spread() -> None:
    bodies = [message_body(f"resp_{number:032x}", "completed", ENDED_MS) for number in range(1_000)]
    delays = sorted(retry_delay_ms(body, 2) for body in bodies)
    low, high = delays[0] / 300_000, delays[-1] / 300_000
    assert low < 1 - JITTER * 0.9
    assert high > 1 + JITTER * 0.9
    assert abs(delays[500] / 300_000 - 1) < JITTER / 5


@pytest.mark.parametrize(
    ("asked_ms", "tries", "expected_ms"),
    [
        (120_000, 1, 120_000),  # later than the schedule: the receiver knows best
        (0, 1, retry_delay_ms(BODY, 1)),  # sooner: it doesn't get to be flooded
        (1_000, 4, retry_delay_ms(BODY, 4)),
        (10**12, 1, 24 * HOUR_MS),  # bounded
    ],
)
def test_a_receiver_may_ask_for_a_later_try_within_bounds(asked_ms: int, tries: int, expected_ms: int) -> None:
    decided = verdict(http(503, retry_after_ms=asked_ms), tries)
    assert decided.next_at_ms == ENDED_MS + expected_ms


def test_nothing_moves_a_try_behind_the_end_of_the_retries() -> None:
    decided = verdict(http(429, retry_after_ms=10**12), 3, RETRY_MS_MAX - 1_000)
    assert decided.next_at_ms == ENDED_MS + RETRY_MS_MAX


# Where it may go


@pytest.mark.parametrize(
    ("text", "host", "port", "target", "shown"),
    [
        ("https://example.org", "example.org", 443, "/", "https://example.org/"),
        ("HTTP://Example.ORG.:8080/A/b?x=1&y", "example.org", 8080, "/A/b?x=1&y", "http://example.org:8080/A/b"),
        ("https://example.org:443/", "example.org", 443, "/", "https://example.org/"),
        ("http://example.org?token=1", "example.org", 80, "/?token=1", "http://example.org/"),
        ("https://[2001:DB8::1]:8443/h", "2001:db8::1", 8443, "/h", "https://[2001:db8::1]:8443/h"),
        (
            "https://a-b_c.xn--nxasmq6b/%C3%A4",
            "a-b_c.xn--nxasmq6b",
            443,
            "/%C3%A4",
            "https://a-b_c.xn--nxasmq6b/%C3%A4",
        ),
        ("http://127.0.0.1:1/", "127.0.0.1", 1, "/", "http://127.0.0.1:1/"),
    ],
)
def test_a_plain_url_is_taken_apart(text: str, host: str, port: int, target: str, shown: str) -> None:
    url = parse_url(text)
    assert (url.host, url.port, url.path + url.query, url.shown) == (host, port, target, shown)
    assert parse_url(url.shown + url.query) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.org",
        "//example.org/",
        "ftp://example.org/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://",
        "https:///path",
        "https://user@example.org/",
        "https://user:secret@example.org/",
        "https://example.org@127.0.0.1/",
        "https://example.org/#fragment",
        "https://example.org/#",
        "https://example.org\\@127.0.0.1/",
        "https://example.org\\.evil.example/",
        "https://exa mple.org/",
        "https://example.org/a b",
        " https://example.org/",
        "https://example.org/\n",
        "https://example.org\r\nHost: other/",
        "https://example.org/\x00",
        "https://exämple.org/",
        "https://example.org/ä",
        "https://example..org/",
        "https://.example.org/",
        "https://-example.org/",
        f"https://{'a' * 64}.org/",
        f"https://{'.'.join(['a' * 60] * 5)}/",
        "https://example.org:0/",
        "https://example.org:65536/",
        "https://example.org:99999/",
        "https://example.org:/",
        "https://example.org:+80/",
        "https://example.org:８０/",
        "https://[::1/",
        "https://::1/",
        "https://[fe80::1%25eth0]/",
        "https://[example.org]/",
        f"https://example.org/{'a' * WEBHOOK_URL_CHARS_MAX}",
    ],
)
def test_what_two_parsers_could_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_url(text)
    assert refused.value.param == "webhook"


def test_the_longest_url_is_taken() -> None:
    text = "https://example.org/"
    assert parse_url(text + "a" * (WEBHOOK_URL_CHARS_MAX - len(text))).host == "example.org"


@given(st.text(alphabet="htps:/.@[]#?%\\ aé1-_", max_size=40))
def test_no_text_at_all_gets_past_with_a_user_or_a_fragment(text: str) -> None:
    try:
        url = parse_url(f"https://{text}")
    except InvalidRequest:
        return
    assert not set("@#\\ ") & set(url.host)
    assert text.lower().startswith(("[" if ":" in url.host else "") + url.host)
