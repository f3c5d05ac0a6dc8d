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

-- name: page
-- All responses by primary key, for the check that derives them again.
SELECT id, status, body, last_seq
FROM responses
WHERE id > :after
ORDER BY id
LIMIT :limit;
