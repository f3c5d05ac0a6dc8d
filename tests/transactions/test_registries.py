"""Models, snapshots, clients, instances and the service's identity: the rows beside the tasks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

import pytest

from retoma.core.task import State
from retoma.errors import Conflict, InvalidRequest, LeaseLost, ModelNotFound, StaleVersion, TaskUnfinished
from retoma.limits import SNAPSHOTS_KEPT
from retoma.store.contract import Row, Tx
from retoma.store.rows import InstanceRow
from retoma.store.statements import Statement
from retoma.transactions import clients, instances, models, service, snapshots
from retoma.transactions.instances import DeclareDead, Register
from retoma.transactions.models import RegisterModel
from retoma.transactions.service import ChangeService
from tests.support.world import World

MODEL = RegisterModel("m", "a" * 64, 10, "llama", "file", {"layers": 2}, 0)


# Models


@pytest.mark.requirement("P-11.1-files", "S-005")
def test_a_model_is_registered_once_with_its_digest(world: World) -> None:
    row = world.does(models.register_model, MODEL)
    assert world.does(models.register_model, MODEL) == row
    assert (row.digest, row.fact_fields, row.version, row.state) == ("a" * 64, {"layers": 2}, 1, "available")
    assert world.store.read(models.read_models) == [row]
    assert world.store.read(partial(models.read_model, name="m")) == row


@pytest.mark.requirement("S-003")
def test_a_name_that_stands_for_other_content_is_a_conflict(world: World) -> None:
    world.does(models.register_model, MODEL)
    with pytest.raises(Conflict):
        world.does(models.register_model, replace(MODEL, digest="b" * 64))
    assert world.store.read(partial(models.read_model, name="m")).digest == "a" * 64


def test_a_corrupt_model_is_available_again_once_its_file_is_written_again(world: World) -> None:
    world.does(models.register_model, MODEL)
    world.store.transact(partial(models.set_model_state, name="m", state="corrupt"))
    world.store.transact(partial(models.set_model_state, name="m", state="corrupt"))
    corrupt = world.store.read(partial(models.read_model, name="m"))
    assert (corrupt.state, corrupt.version) == ("corrupt", 2)
    assert world.does(models.register_model, MODEL).state == "available"


def test_what_a_self_test_finds_is_added_to_the_facts(world: World) -> None:
    world.does(models.register_model, MODEL)
    world.store.transact(partial(models.add_model_facts, name="m", facts={"exact": True}))
    assert world.store.read(partial(models.read_model, name="m")).fact_fields == {"layers": 2, "exact": True}


def test_the_file_goes_with_the_last_name_that_needs_it(world: World) -> None:
    world.does(models.register_model, MODEL)
    world.does(models.register_model, replace(MODEL, name="n"))
    assert world.store.transact(partial(models.remove_model, name="m")) is None
    assert world.store.transact(partial(models.remove_model, name="n")) == "a" * 64
    with pytest.raises(ModelNotFound):
        world.store.transact(partial(models.remove_model, name="n"))


@pytest.mark.parametrize("state", State)
def test_a_model_that_an_unfinished_task_needs_is_not_removed(world: World, state: State) -> None:
    world.does(models.register_model, MODEL)
    world.in_state(state)
    if state.finished:
        assert world.store.transact(partial(models.remove_model, name="m")) == "a" * 64
        return
    with pytest.raises(TaskUnfinished, match="1 unfinished"):
        world.store.transact(partial(models.remove_model, name="m"))


LOOKS = {"models.read", "models.lock"}


class StaleTx:
    """A transaction whose look at a model is older than its write, as if the row's lock were not there."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    def row(self, statement: Statement, params: Any) -> Row | None:
        found = self._tx.row(statement, params)
        return (*found[:7], found[7] - 1, found[8]) if statement.name in LOOKS and found else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


@pytest.mark.requirement("S-003")
def test_a_model_that_has_just_changed_is_not_changed_over_it(world: World) -> None:
    world.does(models.register_model, MODEL)
    with pytest.raises(StaleVersion):
        world.store.transact(lambda tx: models.add_model_facts(StaleTx(tx), "m", {"exact": True}))
    with pytest.raises(StaleVersion):
        world.store.transact(lambda tx: models.remove_model(StaleTx(tx), "m"))
    assert world.store.read(partial(models.read_model, name="m")).version == 1


# Snapshots


def test_the_newest_snapshots_are_kept_and_the_others_paths_are_returned(world: World) -> None:
    task = world.running()
    paths = [world.snapshot_command(task, tokens).path for tokens in (1, 2, 3, 4)]
    dropped = [world.snapshot(task, tokens) for tokens in (1, 2, 3, 4)]
    assert dropped == [[], [], [paths[0]], [paths[1]]]
    kept = world.store.read(partial(snapshots.read_snapshots, task_id=task.id))
    assert [row.path for row in kept] == [paths[3], paths[2]]
    assert len(kept) == SNAPSHOTS_KEPT
    assert world.store.read(snapshots.read_snapshot_paths) == [(task.id, paths[2]), (task.id, paths[3])]
    assert world.problems() == []


@pytest.mark.requirement("S-005", "S-007")
def test_a_snapshot_registered_twice_has_one_row(world: World) -> None:
    task = world.running()
    command = world.snapshot_command(task, 1)
    world.does(snapshots.register_snapshot, command)
    world.does(snapshots.register_snapshot, command)
    assert len(world.store.read(partial(snapshots.read_snapshots, task_id=task.id))) == 1


def test_a_snapshot_that_has_vanished_is_forgotten(world: World) -> None:
    task = world.running()
    world.snapshot(task, 1)
    world.snapshot(task, 2)
    gone = world.snapshot_command(task, 1).path
    world.store.transact(partial(snapshots.forget_snapshot, task_id=task.id, path=gone))
    world.store.transact(partial(snapshots.forget_snapshot, task_id=task.id, path=gone))
    assert [row.tokens for row in world.store.read(partial(snapshots.read_snapshots, task_id=task.id))] == [2]


def test_snapshots_go_with_the_end_of_their_task(world: World) -> None:
    task = world.running()
    world.snapshot(task, 0)
    world.cancel(task.id)
    assert world.problems() == []
    world.finish(task, "cancelled")
    assert world.store.read(snapshots.read_snapshot_paths) == []
    with pytest.raises(LeaseLost):
        world.snapshot(task, 1)


# Clients


@pytest.mark.requirement("S-005")
def test_a_client_is_known_by_the_hash_of_its_token_and_added_once(world: World) -> None:
    client = clients.Client("cli_1", "laptop", frozenset({"admin", "tasks:read"}))
    token_hash = sha256(b"token").digest()
    add = partial(clients.add_client, client=client, token_hash=token_hash, now_ms=0)
    world.store.transact(add)
    world.store.transact(add)
    assert world.store.read(partial(clients.read_client, token_hash=token_hash)) == client
    assert world.store.read(partial(clients.read_client, token_hash=bytes(32))) is None
    with pytest.raises(Conflict):
        world.store.transact(partial(add, client=replace(client, id="cli_2")))


# Instances

ME = Register("instance-1", "host", "boot-1", 7, 5_000, 0)
GONE = DeclareDead("instance-1", lock_is_free=True, boot_id="boot-1")
SILENT = DeclareDead("instance-1", lock_is_free=False, boot_id="boot-1")


@pytest.fixture
def registered(world: World) -> World:
    world.does(instances.register, ME)
    world.does(instances.register, ME)
    return world


def seen(world: World) -> InstanceRow:
    (row,), _ = world.store.read(instances.read_instances_and_owners)
    return row


@pytest.mark.requirement("S-006")
def test_a_lease_is_prolonged_until_others_have_declared_the_instance_dead(registered: World) -> None:
    renew = partial(instances.renew, instance_id="instance-1")
    before = seen(registered).lease_until_ms
    assert registered.store.transact(partial(renew, lease_ms=600_000))
    prolonged = seen(registered).lease_until_ms
    assert before + 590_000 < prolonged < before + 700_000
    assert registered.does(instances.declare_dead, GONE)
    assert not registered.store.transact(partial(renew, lease_ms=700_000))
    assert (seen(registered).lease_until_ms, seen(registered).state) == (prolonged, "dead")


@pytest.mark.requirement("S-003", "S-006", "S-006a")
def test_an_instance_that_has_renewed_since_it_was_looked_at_is_not_declared_dead(registered: World) -> None:
    renew = partial(instances.renew, instance_id="instance-1")
    registered.store.transact(partial(renew, lease_ms=-1_000))
    registered.store.transact(partial(renew, lease_ms=60_000))
    assert not registered.does(instances.declare_dead, SILENT)
    assert seen(registered).state == "alive"
    registered.store.transact(partial(renew, lease_ms=-1_000))
    assert registered.does(instances.declare_dead, SILENT)
    assert seen(registered).state == "dead"


@pytest.mark.requirement("S-006")
@pytest.mark.parametrize(
    ("sign", "dead"),
    [("silence", False), ("lock", True), ("boot", True)],
)
def test_a_living_lease_yields_to_a_free_lock_and_to_another_start_of_the_machine(
    registered: World, sign: str, dead: bool
) -> None:
    signs = {"silence": SILENT, "lock": GONE, "boot": replace(SILENT, boot_id="boot-2")}
    assert registered.does(instances.declare_dead, signs[sign]) is dead
    # Where instances run on several machines, another boot says nothing.
    assert registered.does(instances.declare_dead, replace(SILENT, boot_id=None)) is dead


def test_a_death_is_declared_any_number_of_times_also_when_the_row_is_gone(registered: World) -> None:
    declare = partial(instances.declare_dead, command=GONE)
    assert [registered.store.transact(declare) for _ in range(2)] == [True, True]
    assert registered.store.transact(partial(instances.leave, instance_id="instance-1"))
    assert registered.store.transact(declare)
    assert registered.store.read(instances.read_instances_and_owners) == ([], [])


@pytest.mark.parametrize("state", State)
def test_an_instance_leaves_only_when_it_owns_nothing(registered: World, state: State) -> None:
    registered.in_state(state)
    assert registered.store.transact(partial(instances.leave, instance_id="instance-1")) == state.finished
    rows, owners = registered.store.read(instances.read_instances_and_owners)
    assert ([row.id for row in rows], owners) == (([], []) if state.finished else (["instance-1"], ["instance-1"]))


def test_what_is_left_behind_comes_in_batches_with_what_was_under_way_first(world: World) -> None:
    running, loading = world.running().id, world.in_state(State.LOADING).id
    queued = [world.accept().id for _ in range(2)]
    left = partial(instances.read_left_behind, instance_id="instance-1")
    assert world.store.read(partial(left, limit=10)) == [running, loading, *queued]
    assert world.store.read(partial(left, limit=1)) == [running, queued[0]]
    active = world.store.read(partial(instances.read_active, instance_id="instance-1", limit=1))
    assert active == [(running, State.RUNNING)]


# Service


def test_the_identity_of_the_service_is_kept_from_its_first_start_on(world: World) -> None:
    keep = partial(service.keep_identity, now_ms=0)
    assert world.store.transact(partial(keep, candidate="first")) == "first"
    assert world.store.transact(partial(keep, candidate="second")) == "first"


@pytest.mark.requirement("S-003")
def test_stored_settings_change_under_their_version_and_a_command_driven_again_changes_nothing(world: World) -> None:
    first = world.store.transact(partial(service.keep_service, candidate="svc", now_ms=0))
    assert world.store.transact(partial(service.keep_service, candidate="other", now_ms=1)) == first
    assert (first.id, first.version, first.values) == ("svc", 1, {})
    command = ChangeService({"queue_max": 5, "name": "mine"}, 1, 0, "op")
    changed = world.does(service.change_service, command)
    assert (changed.version, changed.values) == (2, {"queue_max": 5, "name": "mine"})
    assert world.does(service.change_service, command) == changed
    with pytest.raises(StaleVersion):
        world.does(service.change_service, replace(command, op_id="another"))
    merged = world.does(service.change_service, ChangeService({"name": None, "retention_days": 0.5}, None, 0, "op2"))
    assert (merged.version, merged.values) == (3, {"queue_max": 5, "retention_days": 0.5})
    assert world.store.read(service.read_service) == merged


@pytest.mark.parametrize("changes", [{"nonsense": 1}, {"queue_max": 0}, {"queue_max": 1.5}, {"name": ""}])
def test_what_is_no_setting_or_out_of_its_bounds_is_not_stored(world: World, changes: dict[str, Any]) -> None:
    before = world.store.transact(partial(service.keep_service, candidate="svc", now_ms=0))
    with pytest.raises(InvalidRequest, match=next(iter(changes))):
        world.does(service.change_service, ChangeService(changes, None, 0, "op"))
    assert world.store.read(service.read_service) == before


@pytest.mark.requirement("S-003")
def test_a_model_is_removed_at_the_version_that_was_seen(world: World) -> None:
    world.does(models.register_model, MODEL)
    with pytest.raises(StaleVersion, match="version 1, not 2"):
        world.store.transact(partial(models.remove_model, name="m", version=2))
    assert world.store.transact(partial(models.remove_model, name="m", version=1)) == "a" * 64
