-- name: insert
-- A new client; only the hash of its token is stored. Its id is new, so the only conflict is the command driven again.
INSERT INTO clients (id, name, token_hash, scopes, version, created_at_ms, last_used_at_ms, revoked_at_ms)
VALUES (:id, :name, :token_hash, :scopes, 1, :now_ms, NULL, NULL)
ON CONFLICT (id) DO NOTHING;

-- name: by_token
-- Who holds this token, by the unique index on token_hash.
SELECT id, name, scopes
FROM clients
WHERE token_hash = :token_hash AND revoked_at_ms IS NULL;

-- name: read
-- One client, by primary key, revoked or not.
SELECT id, name, scopes, created_at_ms, last_used_at_ms, revoked_at_ms
FROM clients
WHERE id = :id;

-- name: page
-- A page of clients, newest first, by primary key; the revoked ones are there if they are asked for.
SELECT id, name, scopes, created_at_ms, last_used_at_ms, revoked_at_ms
FROM clients
WHERE id < :before AND (CAST(:revoked_too AS bigint) = 1 OR revoked_at_ms IS NULL)
ORDER BY id DESC
LIMIT :limit;

-- name: revoke
-- Takes a client's token away, by primary key; what was revoked before keeps its time.
UPDATE clients
SET revoked_at_ms = :now_ms, version = version + 1
WHERE id = :id AND revoked_at_ms IS NULL;

-- name: note_use
-- When a client was last seen, by primary key; a later time stays, whoever writes last. It is no new version.
UPDATE clients
SET last_used_at_ms = :used_at_ms
WHERE id = :id AND (last_used_at_ms IS NULL OR last_used_at_ms < :used_at_ms);
