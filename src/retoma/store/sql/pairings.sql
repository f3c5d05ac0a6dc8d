-- name: insert
-- A new code; only the hash of it is stored.
INSERT INTO pairings (id, code_hash, name, scopes, wrong_tries, created_at_ms, expires_at_ms)
VALUES (:id, :code_hash, :name, :scopes, 0, :now_ms, :expires_at_ms);

-- name: lock
-- Every code that was given out, locked in one order: of two tries at once the second sees what the first has done.
SELECT id, code_hash, name, scopes, wrong_tries, expires_at_ms
FROM pairings
ORDER BY id
$FOR_UPDATE;

-- name: count
-- How many codes there are; asked after the lock, it also counts what was committed while the lock was waited for.
SELECT count(*)
FROM pairings;

-- name: count_try
-- One more wrong try, by primary key.
UPDATE pairings
SET wrong_tries = wrong_tries + 1
WHERE id = :id;

-- name: delete
-- A code that was used, has expired or was guessed at too often, by primary key.
DELETE FROM pairings
WHERE id = :id;

-- name: audit
-- Every code, by id, for the checker.
SELECT id, scopes, wrong_tries, created_at_ms, expires_at_ms
FROM pairings
ORDER BY id;
