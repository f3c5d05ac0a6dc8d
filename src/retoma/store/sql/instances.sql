-- name: insert
-- A new instance; its id is new at every start, so the only conflict is the same command driven again.
INSERT INTO instances (id, host, boot_id, pid, lease_until_boot_ms, state, registered_at_ms)
VALUES (:id, :host, :boot_id, :pid, :lease_until_boot_ms, 'alive', :now_ms)
ON CONFLICT (id) DO NOTHING;

-- name: renew
-- Zero rows mean that others have declared this instance dead; a late renewal that nobody minded is a renewal.
UPDATE instances
SET lease_until_boot_ms = :lease_until_boot_ms
WHERE id = :id AND state = 'alive';

-- name: declare_dead
-- Under the row's lock, so that a renewal and this declaration can't both succeed on one reading of the lease.
UPDATE instances
SET state = 'dead'
WHERE id = :id AND state = 'alive' AND lease_until_boot_ms = :seen_lease_until_boot_ms;

-- name: read
-- One instance by primary key.
SELECT id, host, boot_id, pid, lease_until_boot_ms, state, registered_at_ms
FROM instances
WHERE id = :id;

-- name: all
-- Every instance, for recovery and for people.
SELECT id, host, boot_id, pid, lease_until_boot_ms, state, registered_at_ms
FROM instances
ORDER BY id;

-- name: delete
-- An instance that owns nothing any more; its last act, or its rescuer's.
DELETE FROM instances
WHERE id = :id;
