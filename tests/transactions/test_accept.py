"""A request becomes a task once, whatever is repeated."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

import pytest

from retoma.core.task import OnRestart, State
from retoma.errors import IdempotencyConflict, NotFound, QueueFull
from retoma.transactions.accept import Accepted, accept, new_task
from retoma.transactions.read import count_states, read_first_answer
from tests.support.world import DAY_MS, World, key_of


@pytest.mark.requirement("P-11.2-persist", "P-11.2-seq")
def test_an_accepted_task_is_there_with_its_first_two_events_and_its_key(world: World) -> None:
    task = world.accept(OnRestart.RETRY, key=key_of("K"), stored=False, background=False)
    assert (task.state, task.version, task.last_seq, task.fencing_token) == (State.QUEUED, 1, 1, 0)
    assert (task.mode, task.retention, task.on_restart) == ("foreground", "unstored", OnRestart.RETRY)
    assert world.types(task.id) == ["created", "queued"]
    assert world.accept(key=key_of("K")).id == task.id
    assert world.problems() == []


def test_the_row_that_is_written_is_the_row_that_was_announced(world: World) -> None:
    command = world.accept_command(priority=3)
    world.does(accept, command)
    assert world.task(command.task_id) == new_task(command)


@pytest.mark.requirement("S-005", "S-005b")
def test_the_same_command_driven_again_has_one_effect(world: World) -> None:
    command = world.accept_command(key=key_of("K"))
    assert world.does(accept, command) == Accepted(command.task_id, replayed=False)
    assert world.does(accept, command) == Accepted(command.task_id, replayed=False)
    assert world.store.read(count_states) == {"queued": 1}
    assert world.types(command.task_id) == ["created", "queued"]


@pytest.mark.requirement("S-005")
def test_the_same_key_and_body_lead_to_the_first_task_in_every_state(world: World) -> None:
    first = world.accept(key=key_of("K"))
    replayed = Accepted(first.id, replayed=True)
    assert world.does(accept, world.accept_command(key=key_of("K"))) == replayed
    world.cancel(first.id)
    assert world.does(accept, world.accept_command(key=key_of("K"))) == replayed


@pytest.mark.requirement("S-003", "S-003c")
def test_the_same_key_with_another_body_is_refused_and_nothing_is_written(world: World) -> None:
    first = world.accept(key=key_of("K"))
    with pytest.raises(IdempotencyConflict):
        world.accept(key=key_of("K", "another body"))
    assert world.store.read(count_states) == {"queued": 1}
    assert world.types(first.id) == ["created", "queued"]


def test_a_key_belongs_to_its_client(world: World) -> None:
    assert world.accept(key=key_of("K")).id != world.accept(key=key_of("K"), client_id="cli_2").id
    assert world.problems() == []


def test_an_expired_key_is_forgotten_but_never_while_its_task_is_unfinished(world: World) -> None:
    expired = key_of("K", expires_at_ms=world.clock.wall_ms() + DAY_MS)
    first = world.accept(key=expired)
    world.clock.advance(DAY_MS)
    assert world.accept(key=expired).id == first.id
    world.clock.advance(1)
    assert world.accept(key=expired).id == first.id
    with pytest.raises(IdempotencyConflict):
        world.accept(key=replace(expired, request_digest=bytes(32)))
    world.cancel(first.id)
    later = replace(expired, request_digest=bytes(32), expires_at_ms=world.clock.wall_ms() + DAY_MS)
    assert world.accept(key=later).id != first.id
    assert world.problems() == []


def test_a_full_queue_refuses_what_is_new_and_still_answers_what_it_knows(world: World) -> None:
    first = world.accept(key=key_of("K"))
    with pytest.raises(QueueFull):
        world.accept(queue_max=1)
    assert world.accept(key=key_of("K"), queue_max=1).id == first.id
    assert world.store.read(count_states) == {"queued": 1}
    assert world.accept(queue_max=None).state is State.QUEUED


def test_a_refusal_takes_back_that_an_expired_key_was_forgotten(world: World) -> None:
    key = key_of("K", expires_at_ms=world.clock.wall_ms())
    first = world.accept(key=key)
    world.cancel(first.id)
    world.accept()
    world.clock.advance(1)
    with pytest.raises(QueueFull):
        world.accept(key=key, queue_max=1)
    world.clock.advance(-1)
    assert world.accept(key=key).id == first.id


def test_the_first_answer_is_the_same_however_far_the_task_has_got(world: World) -> None:
    task = world.accept()
    first = world.store.read(partial(read_first_answer, task_id=task.id))
    assert first["status"] == "queued"
    running = world.claim()
    assert running is not None
    world.start(running)
    assert world.store.read(partial(read_first_answer, task_id=task.id)) == first
    with pytest.raises(NotFound):
        world.store.read(partial(read_first_answer, task_id="resp_gone"))


def test_text_that_utf8_can_not_hold_is_accepted_all_the_same(world: World) -> None:
    task = world.running()
    world.append(task, "half \ud83d of a pair\0")
    assert world.output(task.id).text == "half \ud83d of a pair\0"


@pytest.mark.requirement("S-002", "S-003", "S-003a")
def test_fifty_requests_with_one_key_at_once_become_one_task(world: World) -> None:
    barrier = threading.Barrier(50)
    commands = [world.accept_command(key=key_of("K")) for _ in range(50)]
    accepted: list[Accepted] = []

    def client(number: int) -> None:
        barrier.wait(20)
        accepted.append(world.does(accept, commands[number]))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(accepted) == 50
    assert len({one.task_id for one in accepted}) == 1
    assert [one.replayed for one in accepted].count(False) == 1
    assert world.store.read(count_states) == {"queued": 1}
    assert world.problems() == []
