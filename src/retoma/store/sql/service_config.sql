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
