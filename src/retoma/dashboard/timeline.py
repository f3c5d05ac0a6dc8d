"""A task's life as its durable log tells it: steps with sentences, and stretches of time for the bar above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retoma.core import events
from retoma.core.task import OnRestart, State
from retoma.dashboard.words import CAUSES, ERROR_ADVICE, PATHS, POLICIES, duration, plural, short_id
from retoma.transactions.survey import Turn

BAR_UNITS = 1000
# A stretch that is too short to be seen is drawn this wide, and the others give way.
_STRETCH_MIN = 8


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of the list. `kind` is a word for its colour; `lasted_ms` is None where the next step isn't there."""

    kind: str
    title: str
    sentences: list[str]
    at_ms: int
    seq: int
    lasted_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of the bar; `x` and `width` are parts of `BAR_UNITS`."""

    kind: str
    length_ms: int
    x: int = 0
    width: int = 0


@dataclass(frozen=True, slots=True)
class Life:
    """`complete` is False when the first steps are too long ago to be shown."""

    steps: list[Step]
    stretches: list[Stretch]
    complete: bool

    def total_ms(self, kind: str) -> int:
        """How long all stretches of a kind took together."""
        return sum(stretch.length_ms for stretch in self.stretches if stretch.kind == kind)


def life_of(turns: Sequence[Turn], tokens: int, now_ms: int) -> Life:
    """The life up to `now_ms`, or to its end. `tokens`: those that the present attempt has committed."""
    steps: list[Step] = []
    before: Turn | None = None
    for turn in turns:
        if not _says_nothing_new(before, turn):
            steps.append(_step(before, turn, tokens))
        before = turn
    ends = [step.at_ms for step in steps[1:]]
    timed = [
        Step(step.kind, step.title, step.sentences, step.at_ms, step.seq, max(0, end - step.at_ms))
        for step, end in zip(steps, ends, strict=False)
    ]
    return Life(timed + steps[len(ends) :], _bar(turns, now_ms), bool(turns) and turns[0].seq == 0)


def _says_nothing_new(before: Turn | None, turn: Turn) -> bool:
    """`response.queued` right behind `response.created`: one commit."""
    return before is not None and before.type == events.CREATED and turn.type == events.QUEUED


def _step(before: Turn | None, turn: Turn, tokens: int) -> Step:
    task = turn.response["task"]
    state = State(task["state"])
    if turn.type == events.CREATED:
        policy = POLICIES[OnRestart(task["on_restart"])]
        return Step("queued", "Accepted, waiting", [f"Stored, and from here on safe: {policy}."], turn.at_ms, turn.seq)
    if turn.type in events.TERMINAL:
        return _end(before, turn, tokens)
    if _restarted(before, turn):
        return _restart(turn)
    return Step(*_plain(before, task, state), turn.at_ms, turn.seq)


def _plain(before: Turn | None, task: dict[str, Any], state: State) -> tuple[str, str, list[str]]:
    if state is State.LOADING:
        return (
            "loading",
            "Loading",
            [f"Taken by {short_id(task['instance'])}, which gets the model ready and reads the prompt."],
        )
    if state is State.CANCELLING:
        return "cancelling", "Cancel asked for", ["Stored; the engine is being stopped."]
    if state is State.QUEUED:
        return "queued", "Waiting", []
    if before is not None and before.response["task"]["state"] == State.RUNNING:
        return "running", "Goes on", _resumed(task["restarts"][-1])
    return "running", "Running", [f"Attempt {task['attempt']}: the prompt has been read, tokens come."]


def _resumed(restart: dict[str, Any]) -> list[str]:
    told = [PATHS.get(restart["path"] or "", "")]
    if restart.get("exact") is False:
        told.append("The engine is not the one that began, so the rest may differ from what would have come.")
    return [sentence for sentence in told if sentence]


def _restarted(before: Turn | None, turn: Turn) -> bool:
    """True if the list of restarts has a new last entry, whatever `Start` has noted in it since."""
    now: list[dict[str, Any]] = turn.response["task"]["restarts"]
    earlier: list[dict[str, Any]] = before.response["task"]["restarts"] if before is not None else []
    return bool(now) and (len(now) > len(earlier) or _identity(now[-1]) != _identity(earlier[-1]))


def _identity(restart: dict[str, Any]) -> tuple[Any, ...]:
    return restart["at"], restart["from"], restart["resumed_at_token"]


def _restart(turn: Turn) -> Step:
    task = turn.response["task"]
    restart = task["restarts"][-1]
    cause = CAUSES.get(restart["cause"], restart["cause"])
    found = f"Found {restart['from']}: {cause}."
    if turn.before_ms is not None and turn.at_ms > turn.before_ms:
        found += f" The last commit before that was {duration(turn.at_ms - turn.before_ms)} earlier."
    sentences = [found, _what_policy_does(restart), f"Taken over by {short_id(task['instance'])}."]
    return Step("restart", "Restart", sentences, turn.at_ms, turn.seq)


def _what_policy_does(restart: dict[str, Any]) -> str:
    policy, token = restart["policy"], restart["resumed_at_token"]
    if token is not None:
        return f"Policy {policy}: it goes on after {plural(token, 'token')}, none of them lost."
    if restart["from"] == State.QUEUED:
        return f"Policy {policy}: it keeps its place in the queue."
    return f"Policy {policy}: it begins again."


def _end(before: Turn | None, turn: Turn, tokens: int) -> Step:
    response = turn.response
    usage = response["usage"]
    count = usage["output_tokens"] if usage else tokens
    said = [f"{plural(count, 'token')} in all."]
    if _restarted(before, turn):
        cause = turn.response["task"]["restarts"][-1]["cause"]
        said.append(f"It was left behind: {CAUSES.get(cause, cause)}.")
    if turn.type == events.COMPLETED:
        return Step("completed", "Completed", said, turn.at_ms, turn.seq)
    if turn.type == events.INCOMPLETE:
        reason = response["incomplete_details"]["reason"]
        why = "It reached the length that it was given." if reason == "max_output_tokens" else f"Reason: {reason}."
        return Step("incomplete", "Ended at its limit", [why, *said], turn.at_ms, turn.seq)
    if turn.type == events.CANCELLED:
        return Step("cancelled", "Cancelled", said, turn.at_ms, turn.seq)
    return Step("failed", "Failed", [*failure(response["error"]), *said[:1]], turn.at_ms, turn.seq)


def failure(error: dict[str, Any]) -> list[str]:
    """Why a task failed, and what to do."""
    message = str(error["message"]).strip()
    sentence = message[:1].upper() + message[1:] + ("" if message.endswith((".", "!", "?")) else ".")
    advice = ERROR_ADVICE.get(error["code"], "")
    return [text for text in (sentence if message else "", advice) if text]


def _bar(turns: Sequence[Turn], now_ms: int) -> list[Stretch]:
    found: list[Stretch] = []

    def add(kind: str, from_ms: int, to_ms: int) -> None:
        if to_ms > from_ms and found and found[-1].kind == kind:
            found[-1] = Stretch(kind, found[-1].length_ms + to_ms - from_ms)
        elif to_ms > from_ms:
            found.append(Stretch(kind, to_ms - from_ms))

    kind, since_ms = "", 0
    before: Turn | None = None
    for turn in turns:
        if before is not None:
            restarted = _restarted(before, turn)
            left_ms = turn.before_ms if restarted and turn.before_ms is not None else turn.at_ms
            add(kind, since_ms, left_ms)
            if restarted:
                add("down", left_ms, turn.at_ms)
        kind, since_ms = _kind_after(before, turn), turn.at_ms
        before = turn
    if before is not None and before.type not in events.TERMINAL:
        add(kind, since_ms, now_ms)
    return _laid_out(found)


def _kind_after(before: Turn | None, turn: Turn) -> str:
    """What the time after a change of state is spent with."""
    state = State(turn.response["task"]["state"])
    if state is State.RUNNING and _restarted(before, turn):
        return "loading"  # until the engine has the committed tokens again
    return "running" if state is State.CANCELLING else state


def _laid_out(stretches: list[Stretch]) -> list[Stretch]:
    whole = sum(stretch.length_ms for stretch in stretches)
    widths = [max(_STRETCH_MIN, round(BAR_UNITS * stretch.length_ms / whole)) for stretch in stretches]
    placed: list[Stretch] = []
    scale = BAR_UNITS / sum(widths) if widths else 1.0
    x = 0.0
    for stretch, width in zip(stretches, widths, strict=True):
        placed.append(Stretch(stretch.kind, stretch.length_ms, round(x), max(1, round(width * scale))))
        x += width * scale
    return placed
