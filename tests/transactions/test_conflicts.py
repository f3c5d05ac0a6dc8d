"""Two commands on one object, in both orders and at once: each line of docs/conflicts.md, on both stores."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retoma.core.task import OnRestart, State
from retoma.errors import RetomaError
from retoma.store.rows import ModelRow, TaskRow
from retoma.transactions import models, service
from retoma.transactions.accept import accept
from retoma.transactions.append import append
from retoma.transactions.cancel import cancel
from retoma.transactions.claim import claim
from retoma.transactions.delete import Delete, delete
from retoma.transactions.finish import finish
from retoma.transactions.instances import DeclareDead, Register, declare_dead, register, renew
from retoma.transactions.models import RegisterModel
from retoma.transactions.recover import recover
from retoma.transactions.service import ChangeService
from retoma.transactions.start import start
from tests.support.pruning import Prune, prune
from tests.support.world import DAY_MS, World, key_of

PAGE = Path(__file__).parents[2] / "docs" / "conflicts.md"
RACES = 6
MODEL = RegisterModel("m", "a" * 64, 10, "llama", "file", {}, 0)
Act = Callable[[], Any]


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    place: str
    first: str
    second: str
    forth: tuple[str, str]
    back: tuple[str, str]


def lines() -> list[Line]:
    rows = re.findall(
        r"^\| (.+) \| (.+) \| (.+) \| `(.+)`, `(.+)` \| `(.+)`, `(.+)` \|$", PAGE.read_text(), re.MULTILINE
    )
    return [Line(place, first, second, (a, b), (c, d)) for place, first, second, a, b, c, d in rows]


# What is there before: the object by its name in the table


def place_of(world: World, place: str) -> TaskRow | None:
    match place:
        case "a queued task" | "a loading task" | "a running task" | "a cancelling task":
            return world.in_state(State(place.split()[1]), OnRestart.RESUME)
        case "a finished task":
            world.accept(key=key_of("K"))
            claimed = world.claim()
            assert claimed is not None
            return world.finish(world.start(claimed))
        case "an instance":
            world.does(register, Register(world.me, "host", "boot", 1, -1, 0))
        case "a registered model":
            world.does(models.register_model, MODEL)
        case "the service":
            world.store.transact(partial(service.keep_service, candidate="svc", now_ms=0))
        case _:
            assert place in {"a new request", "a model's name"}
    return None


# The commands, composed before either is carried out


def of_task(world: World, name: str, task: TaskRow) -> Act:  # noqa: C901, PLR0911 - one line a command
    does = world.does
    now_ms = world.clock.wall_ms()
    match name:
        case "claim" | "claim by another instance":
            me = "instance-2" if name == "claim" else "instance-3"
            return partial(does, claim, replace(world.claim_command(), instance_id=me))
        case "start":
            return partial(does, start, world.start_command(task))
        case "append" | "append at the same place":
            return partial(does, append, world.append_command(task))
        case "finish":
            return partial(does, finish, world.finish_command(task))
        case "finish by another owner":
            return partial(does, finish, world.finish_command(task, fencing_token=task.fencing_token - 1))
        case "confirm the cancel":
            return partial(does, finish, world.finish_command(task, "cancelled"))
        case "cancel":
            return partial(does, cancel, world.cancel_command(task.id))
        case "cancel at a version":
            return partial(does, cancel, world.cancel_command(task.id, version=task.version))
        case "recover" | "recover by another instance":
            rescuer = "instance-3" if name == "recover" else "instance-4"
            return partial(does, recover, replace(world.recover_command(task), instance_id=rescuer))
        case "delete":
            return partial(does, delete, Delete(task.id, ""))
        case "prune" | "prune past the key's time":
            later_ms = now_ms + 1 if name == "prune" and task.state is State.RUNNING else now_ms + 2 * DAY_MS
            return partial(does, prune, Prune("stored", later_ms, later_ms, 10))
        case _:
            return partial(does, accept, world.accept_command(key=key_of("K")))


def of_others(world: World, name: str) -> Act:  # noqa: PLR0911 - one line a command
    change = world.store.transact
    match name:
        case "accept" | "accept same key and body":
            return partial(world.does, accept, world.accept_command(key=key_of("K")))
        case "accept same key, other body":
            return partial(world.does, accept, world.accept_command(key=key_of("K", "another body")))
        case "accept a request for it":
            return partial(world.does, accept, world.accept_command())
        case "renew":
            return partial(change, partial(renew, instance_id=world.me, lease_ms=60_000))
        case "declare dead by its lease":
            return partial(world.does, declare_dead, DeclareDead(world.me, lock_is_free=False, boot_id=None))
        case "register" | "register same content":
            return partial(world.does, models.register_model, MODEL)
        case "register other content":
            return partial(world.does, models.register_model, replace(MODEL, digest="b" * 64))
        case "remove" | "remove at a version":
            return partial(change, partial(models.remove_model, name="m", version=1 if "version" in name else None))
        case "note what a self-test found":
            return partial(change, noted)
        case _:
            assert name in {"patch at a version", "patch any version"}
            version = 1 if name == "patch at a version" else None
            command = ChangeService({"name": world.ids.op_id()}, version, 0, world.ids.op_id())
            return partial(world.does, service.change_service, command)


def noted(tx: Any) -> ModelRow:
    models.add_model_facts(tx, "m", {"found": True})
    return models.read_model(tx, "m")


def answer_of(name: str, act: Act) -> str:  # noqa: PLR0911 - one line a kind
    """The command's answer in the table's words."""
    try:
        answer = act()
    except RetomaError as error:
        return type(error).__name__
    verb = name.split(maxsplit=1)[0]
    match verb:
        case "accept":
            return "replayed" if answer.replayed else "queued"
        case "append":
            return "appended"
        case "delete":
            return "deleted"
        case "prune":
            return "deleted" if answer else "nothing"
        case "renew":
            return "renewed" if answer else "refused"
        case "declare":
            return "dead" if answer else "alive"
        case "remove":
            return "removed"
        case "register" | "note" | "patch":
            return f"version {answer.version}"
        case _:
            return "nothing" if answer is None else str(answer.state)


def acts(world: World, line: Line) -> tuple[Act, Act]:
    task = place_of(world, line.place)
    if task is None:
        return of_others(world, line.first), of_others(world, line.second)
    return of_task(world, line.first, task), of_task(world, line.second, task)


def forget_everything(world: World) -> None:
    """The next round begins with an empty store, but for what is past."""
    for task in (
        world.unfinished_of("instance-1") + world.unfinished_of("instance-2") + world.unfinished_of("instance-3")
    ):
        if (ended := world.cancel(task.id, by_client=False)).state is State.CANCELLING:
            world.finish(ended, "cancelled")
    later_ms = world.clock.wall_ms() + 9 * DAY_MS
    world.does(prune, Prune("stored", later_ms, later_ms, 100))
    world.store.transact(delete_the_rest)


def delete_the_rest(tx: Any) -> None:
    from retoma.store.statements import Statement

    for table in ("models", "instances", "service_config"):
        tx.execute(Statement(f"test.empty_{table}", "For a test.", f"DELETE FROM {table}"), {})  # noqa: S608


@pytest.mark.requirement("S-003", "S-006")
@pytest.mark.parametrize("line", lines(), ids=lambda line: f"{line.place}: {line.first}, {line.second}")
def test_two_commands_that_meet_have_one_of_two_results(world: World, line: Line) -> None:
    first, second = acts(world, line)
    assert (answer_of(line.first, first), answer_of(line.second, second)) == line.forth
    assert world.problems() == []
    forget_everything(world)
    first, second = acts(world, line)
    assert (answer_of(line.second, second), answer_of(line.first, first)) == line.back
    assert world.problems() == []
    for _ in range(RACES):
        forget_everything(world)
        assert raced(world, line) in results_of_a_race(line)
        assert world.problems() == []


def results_of_a_race(line: Line) -> set[tuple[str, str]]:
    results = {line.forth, line.back[::-1]}
    if line.first == "claim":  # it passes over a row that the other command holds at the moment
        results.add(("nothing", line.back[0]))
    return results


def raced(world: World, line: Line) -> tuple[str, str]:
    both = acts(world, line)
    names, answers = (line.first, line.second), ["", ""]
    barrier = threading.Barrier(2)

    def run(which: int) -> None:
        barrier.wait(10)
        answers[which] = answer_of(names[which], both[which])

    threads = [threading.Thread(target=run, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return answers[0], answers[1]


VERBS = {
    *("accept", "claim", "start", "append", "finish", "cancel", "delete", "recover", "prune", "renew"),
    *("register", "remove", "patch"),
}


def test_every_command_that_changes_something_stands_in_the_table() -> None:
    found = lines()
    assert len(found) == PAGE.read_text().count("\n| a") + PAGE.read_text().count("\n| the"), "a line can't be read"
    assert {name.split()[0] for line in found for name in (line.first, line.second)} >= VERBS
    pairs = [(line.place, frozenset([line.first, line.second])) for line in found]
    assert len(pairs) == len(set(pairs)), "a pair stands twice in the table"
