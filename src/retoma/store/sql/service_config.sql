-- name: insert
-- A value that is written once, such as the identity of the service.
INSERT INTO service_config (key, value, version, updated_at_ms)
VALUES (:key, :value, 1, :now_ms)
ON CONFLICT (key) DO NOTHING;

-- name: read
-- One value by its key.
SELECT value, version
FROM service_config
WHERE key = :key;

-- name: lock
-- One value by its key, locked, before it is changed.
SELECT value, version
FROM service_config
WHERE key = :key
$FOR_UPDATE;

-- name: update
-- Another value, under the version that was read: a second line behind the lock.
UPDATE service_config
SET value = :value, version = version + 1, updated_at_ms = :now_ms
WHERE key = :key AND version = :version;
