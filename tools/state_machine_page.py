"""Renders docs/state-machine.md from the tables that the service itself decides by."""

from __future__ import annotations

from retoma.core.restart import RESTART, decide_restart
from retoma.core.task import FINISHED, WIRE_STATUS, OnRestart, State
from retoma.core.transitions import TRANSITIONS
from tools.markdown import table

_HEAD = """\
# A task's life

Written by `make docs` from `retoma.core.transitions`, `retoma.core.restart` and `retoma.core.task`; a test fails when
this page is stale.
"""


def render() -> str:
    """The page as it should be now."""
    sections = [_HEAD, _diagram(), _transitions(), _restart(), _wire()]
    return "\n".join(sections)


def _diagram() -> str:
    arrows: dict[tuple[State, State], list[str]] = {}
    for (state, command), target in TRANSITIONS.items():
        arrows.setdefault((state, target), []).append(command)
    lines = [f"    [*] --> {State.QUEUED}: accept"]
    lines += [f"    {state} --> {target}: {', '.join(commands)}" for (state, target), commands in arrows.items()]
    lines += [f"    {state} --> [*]" for state in State if state in FINISHED]
    drawing = "\n".join(lines)
    return f"```mermaid\nstateDiagram-v2\n{drawing}\n```\n"


def _transitions() -> str:
    text = "## Commands\n\nWhat isn't in this table is refused, and nothing is written.\n\n"
    rows = [(f"`{state}`", f"`{command}`", f"`{target}`") for (state, command), target in TRANSITIONS.items()]
    return text + table(("state", "command", "next state"), rows)


def _restart() -> str:
    text = (
        "## After a restart\n\n"
        "What becomes of an unfinished task whose instance is gone, by the task's `on_restart`: the next state, and "
        "the command that leads there.\n\n"
    )
    rows = [(f"`{state}`", *(_cell(state, policy) for policy in OnRestart)) for state in RESTART]
    return text + table(("found", *(f"`{policy}`" for policy in OnRestart)), rows)


def _cell(state: State, policy: OnRestart) -> str:
    command, target = decide_restart(state, policy)
    return f"`{target}` (`{command}`)"


def _wire() -> str:
    text = "## What a client sees\n\n`status` of the response; the state itself is in its `task` object.\n\n"
    return text + table(("state", "status"), [(f"`{state}`", f"`{WIRE_STATUS[state]}`") for state in State])
