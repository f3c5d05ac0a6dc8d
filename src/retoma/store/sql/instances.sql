-- name: insert
-- A new instance; its id is new at every start, so the only conflict is the same command driven again.
INSERT INTO instances (id, host, boot_id, pid, lease_until_ms, state, registered_at_ms)
VALUES (:id, :host, :boot_id, :pid, :lease_until_ms, 'alive', :now_ms)
ON CONFLICT (id) DO NOTHING;

-- name: renew
-- Zero rows mean that others have declared this instance dead; a late renewal that nobody minded is a renewal.
UPDATE instances
SET lease_until_ms = :lease_until_ms
WHERE id = :id AND state = 'alive';

-- name: lock
-- One instance by primary key, locked, so that a renewal and a declaration of death can't both go by one old lease.
SELECT id, host, boot_id, pid, lease_until_ms, state, registered_at_ms
FROM instances
WHERE id = :id
$FOR_UPDATE;

-- name: declare_dead
-- Under the row's lock; from here on no renewal succeeds.
UPDATE instances
SET state = 'dead'
WHERE id = :id AND state = 'alive';

-- name: all
-- Every instance, for recovery and for people.
SELECT id, host, boot_id, pid, lease_until_ms, state, registered_at_ms
FROM instances
ORDER BY id;

-- name: delete
-- An instance that owns nothing any more; its last act, or its rescuer's.
DELETE FROM instances
WHERE id = :id;
