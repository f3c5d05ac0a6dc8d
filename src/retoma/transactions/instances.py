"""Instances: register, renew the lease, declare dead, leave."""

from __future__ import annotations

from dataclasses import dataclass

from retoma.core.lease import decide_dead
from retoma.core.task import State
from retoma.failpoints import Failpoint
from retoma.store.contract import Tx
from retoma.store.rows import InstanceRow
from retoma.store.statements import statement

INSERT = statement("instances.insert")
RENEW = statement("instances.renew")
DECLARE_DEAD = statement("instances.declare_dead")
LOCK = statement("instances.lock")
ALL = statement("instances.all")
DELETE = statement("instances.delete")
OWNERS = statement("tasks.owners")
ACTIVE = statement("tasks.active")
QUEUED_OF = statement("tasks.queued_of")


@dataclass(frozen=True, slots=True)
class Register:
    """A process that begins to serve. Its lease begins when this is written, by the store's time."""

    instance_id: str
    host: str
    boot_id: str
    pid: int
    lease_ms: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class DeclareDead:
    """What speaks for an instance's death, beside its lease.

    `boot_id`: that of the machine on which all instances of this store run, so that one of another start is gone; None
    where they may run on several.
    """

    instance_id: str
    lock_is_free: bool
    boot_id: str | None


def register(tx: Tx, command: Register) -> None:
    """Writes the instance's row; its liveness lock must be held already."""
    tx.execute(
        INSERT,
        {
            "id": command.instance_id,
            "host": command.host,
            "boot_id": command.boot_id,
            "pid": command.pid,
            "lease_until_ms": tx.now_ms() + command.lease_ms,
            "now_ms": command.now_ms,
        },
    )
    tx.after_commit(Failpoint.REGISTER_COMMITTED)


def renew(tx: Tx, instance_id: str, lease_ms: int) -> bool:
    """Prolongs the lease; False if others have declared this instance dead: it must stop and begin anew (S-006)."""
    return tx.execute(RENEW, {"id": instance_id, "lease_until_ms": tx.now_ms() + lease_ms}) == 1


def declare_dead(tx: Tx, command: DeclareDead) -> bool:
    """Ends an instance's ownership if it is dead, by its row as it stands now. True: its tasks may be taken.

    The lease is looked at under the row's lock: an instance that has renewed meanwhile lives, and one that is declared
    dead here can't renew any more.
    """
    row = tx.row(LOCK, {"id": command.instance_id})
    if row is None:
        return True
    instance = InstanceRow(*row)
    if instance.state == "dead":
        return True
    dead = decide_dead(
        same_boot=command.boot_id in {None, instance.boot_id},
        lock_is_free=command.lock_is_free,
        lease_until_ms=instance.lease_until_ms,
        now_ms=tx.now_ms(),
    )
    if dead:
        changed = tx.execute(DECLARE_DEAD, {"id": instance.id})
        assert changed == 1, f"{instance.id} changed under its lock"
    return dead


def leave(tx: Tx, instance_id: str) -> bool:
    """Removes an instance that owns nothing; False, and no change, while it owns an unfinished task."""
    if any(owner == instance_id for (owner,) in tx.rows(OWNERS, {})):
        return False
    tx.execute(DELETE, {"id": instance_id})
    return True


def read_instances_and_owners(tx: Tx) -> tuple[list[InstanceRow], list[str]]:
    """Every instance, and the ids that own unfinished tasks, in one view."""
    return [InstanceRow(*row) for row in tx.rows(ALL, {})], [owner for (owner,) in tx.rows(OWNERS, {})]


def read_active(tx: Tx, instance_id: str, limit: int) -> list[tuple[str, State]]:
    """The tasks that an instance has claimed and not ended, oldest first, with their states."""
    rows = tx.rows(ACTIVE, {"instance_id": instance_id, "limit": limit})
    return [(task_id, State(state)) for task_id, state in rows]


def read_left_behind(tx: Tx, instance_id: str, limit: int) -> list[str]:
    """Unfinished tasks of one instance, those under way first, at most `limit` of each kind.

    Of each kind, so that running texts which a rescuer without workers must leave do not hide the queue behind them.
    """
    under_way = [task_id for task_id, _ in read_active(tx, instance_id, limit)]
    queued = tx.rows(QUEUED_OF, {"instance_id": instance_id, "limit": limit})
    return under_way + [task_id for (task_id,) in queued]
