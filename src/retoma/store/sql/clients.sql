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
