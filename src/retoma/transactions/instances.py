"""Instances: register, renew the lease, declare dead, leave."""

from __future__ import annotations

from dataclasses import dataclass

from retoma.core.task import State
from retoma.failpoints import Failpoint
from retoma.store.contract import Tx
from retoma.store.rows import InstanceRow
from retoma.store.statements import statement

INSERT = statement("instances.insert")
RENEW = statement("instances.renew")
DECLARE_DEAD = statement("instances.declare_dead")
READ = statement("instances.read")
ALL = statement("instances.all")
DELETE = statement("instances.delete")
OWNERS = statement("tasks.owners")
ACTIVE = statement("tasks.active")
QUEUED_OF = statement("tasks.queued_of")


@dataclass(frozen=True, slots=True)
class Register:
    """A process that begins to serve. `lease_until_boot_ms` is counted on the machine's boot clock."""

    instance_id: str
    host: str
    boot_id: str
    pid: int
    lease_until_boot_ms: int
    now_ms: int


def register(tx: Tx, command: Register) -> None:
    """Writes the instance's row; its liveness lock must be held already."""
    tx.execute(
        INSERT,
        {
            "id": command.instance_id,
            "host": command.host,
            "boot_id": command.boot_id,
            "pid": command.pid,
            "lease_until_boot_ms": command.lease_until_boot_ms,
            "now_ms": command.now_ms,
        },
    )
    tx.after_commit(Failpoint.REGISTER_COMMITTED)


def renew(tx: Tx, instance_id: str, lease_until_boot_ms: int) -> bool:
    """Prolongs the lease; False if others have declared this instance dead: it must stop and begin anew (S-006)."""
    return tx.execute(RENEW, {"id": instance_id, "lease_until_boot_ms": lease_until_boot_ms}) == 1


def declare_dead(tx: Tx, seen: InstanceRow) -> bool:
    """Ends an instance's ownership, unless it has renewed its lease since it was seen. True: its tasks may be taken."""
    row = tx.row(READ, {"id": seen.id})
    if row is None or InstanceRow(*row).state == "dead":
        return True
    return tx.execute(DECLARE_DEAD, {"id": seen.id, "seen_lease_until_boot_ms": seen.lease_until_boot_ms}) == 1


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
    """Unfinished tasks of one instance, those under way first, at most `limit`."""
    params = {"instance_id": instance_id, "limit": limit}
    under_way = [task_id for task_id, _ in read_active(tx, instance_id, limit)]
    return (under_way + [task_id for (task_id,) in tx.rows(QUEUED_OF, params)])[:limit]
