-- name: insert
-- The folded response, together with the terminal event.
INSERT INTO responses (id, client_id, status, body, last_seq, completed_at_ms)
VALUES (:id, :client_id, :status, :body, :last_seq, :now_ms);

-- name: read
-- One response by primary key.
SELECT body
FROM responses
WHERE id = :id;

-- name: delete
-- One response by primary key.
DELETE FROM responses
WHERE id = :id;

-- name: whole
-- One response by primary key, for the check that derives it again.
SELECT client_id, status, body, last_seq, completed_at_ms
FROM responses
WHERE id = :id;

-- name: replace
-- The response that the log adds up to, in the place of one that was missing or wrong.
INSERT INTO responses (id, client_id, status, body, last_seq, completed_at_ms)
VALUES (:id, :client_id, :status, :body, :last_seq, :completed_at_ms)
ON CONFLICT (id) DO UPDATE
SET
    client_id = excluded.client_id,
    status = excluded.status,
    body = excluded.body,
    last_seq = excluded.last_seq,
    completed_at_ms = excluded.completed_at_ms;

-- name: orphans
-- Responses of no finished task, for the checker; reads the whole table.
SELECT id
FROM responses
WHERE NOT EXISTS (
    SELECT 1 FROM tasks
    WHERE tasks.id = responses.id AND tasks.state IN ('completed', 'failed', 'cancelled')
)
ORDER BY id
LIMIT :limit;
