-- name: insert
-- A new model whose file is durable; the same name with the same content is no change.
INSERT INTO models (name, digest, size_bytes, engine, source, state, facts, version, created_at_ms)
VALUES (:name, :digest, :size_bytes, :engine, :source, 'available', :facts, 1, :now_ms);

-- name: read
-- One model by its name.
SELECT name, digest, size_bytes, engine, source, state, facts, version, created_at_ms
FROM models
WHERE name = :name;

-- name: lock
-- One model by its name, locked, before it is changed or removed.
SELECT name, digest, size_bytes, engine, source, state, facts, version, created_at_ms
FROM models
WHERE name = :name
$FOR_UPDATE;

-- name: all
-- Every model, by name.
SELECT name, digest, size_bytes, engine, source, state, facts, version, created_at_ms
FROM models
ORDER BY name;

-- name: update
-- New facts (a self-test's flags) or another state, under the version that was read.
UPDATE models
SET state = :state, facts = :facts, version = version + 1
WHERE name = :name AND version = :version;

-- name: delete
-- One model under the version that was read.
DELETE FROM models
WHERE name = :name AND version = :version;

-- name: with_digest
-- How many names share this file, by the index models_by_digest.
SELECT count(*)
FROM models
WHERE digest = :digest;
