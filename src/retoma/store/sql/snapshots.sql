-- name: insert
-- The row of a snapshot whose file is durable; the same file may be reported twice.
INSERT INTO snapshots (task_id, fencing_token, tokens, path, size_bytes, fingerprint, created_at_ms)
VALUES (:task_id, :fencing_token, :tokens, :path, :size_bytes, :fingerprint, :now_ms)
ON CONFLICT (task_id, fencing_token, tokens) DO NOTHING;

-- name: of_task
-- A task's snapshots, newest first, by primary key.
SELECT fencing_token, tokens, path, size_bytes, fingerprint
FROM snapshots
WHERE task_id = :task_id
ORDER BY tokens DESC, fencing_token DESC;

-- name: delete
-- One snapshot by primary key.
DELETE FROM snapshots
WHERE task_id = :task_id AND fencing_token = :fencing_token AND tokens = :tokens;

-- name: delete_of_task
-- All snapshots of a task.
DELETE FROM snapshots
WHERE task_id = :task_id;

-- name: all
-- Every snapshot, for the reconciler and the checker.
SELECT task_id, path
FROM snapshots
ORDER BY path;
