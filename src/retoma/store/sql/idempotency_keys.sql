-- name: read
-- What was done under this key, by primary key, with the state of its task.
SELECT k.request_digest, k.task_id, k.expires_at_ms, t.state
FROM idempotency_keys AS k
INNER JOIN tasks AS t ON t.id = k.task_id
WHERE k.client_id = :client_id AND k.key_hash = :key_hash;

-- name: insert
-- A new key, together with its task.
INSERT INTO idempotency_keys (client_id, key_hash, request_digest, task_id, created_at_ms, expires_at_ms)
VALUES (:client_id, :key_hash, :request_digest, :task_id, :now_ms, :expires_at_ms);

-- name: delete_forgotten
-- One key by primary key, if it has expired and its task is finished. The predicate stands here, so that a key which
-- another client has written since it was looked up is not taken away.
DELETE FROM idempotency_keys
WHERE client_id = :client_id AND key_hash = :key_hash AND expires_at_ms < :now_ms
    AND EXISTS (
        SELECT 1 FROM tasks
        WHERE tasks.id = idempotency_keys.task_id AND tasks.state IN ('completed', 'failed', 'cancelled')
    );

-- name: expired
-- A page of keys past their time, from behind a place on, by the index idempotency_keys_expiring, each with whether its
-- task is finished: a key is kept as long as it is not.
SELECT
    expires_at_ms, client_id, key_hash, task_id,
    EXISTS (
        SELECT 1 FROM tasks
        WHERE tasks.id = idempotency_keys.task_id AND tasks.state IN ('completed', 'failed', 'cancelled')
    )
FROM idempotency_keys
WHERE expires_at_ms < :now_ms
    AND expires_at_ms >= :after_ms
    AND (
        expires_at_ms > :after_ms
        OR client_id > :after_client_id
        OR client_id = :after_client_id AND key_hash > :after_key_hash
    )
ORDER BY expires_at_ms, client_id, key_hash
LIMIT :limit;

-- name: delete_expired_of_task
-- The key of a task past its time, by the index idempotency_keys_by_task; a valid one stays, and with it the task.
DELETE FROM idempotency_keys
WHERE task_id = :task_id AND expires_at_ms < :now_ms;

-- name: delete_of_task
-- The key of a task that is being deleted, by the index idempotency_keys_by_task.
DELETE FROM idempotency_keys
WHERE task_id = :task_id;

-- name: orphans
-- Keys of no task of the same client, for the checker; reads the whole table.
SELECT task_id
FROM idempotency_keys
WHERE NOT EXISTS (
    SELECT 1 FROM tasks
    WHERE tasks.id = idempotency_keys.task_id AND tasks.client_id = idempotency_keys.client_id
)
ORDER BY task_id
LIMIT :limit;
