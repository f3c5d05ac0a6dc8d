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

-- name: stale
-- A page of snapshots, by path, written before an instant for tasks that have not moved since; reads the whole table,
-- which holds two rows for each task under way.
SELECT snapshots.path, snapshots.task_id, snapshots.fencing_token, snapshots.tokens, snapshots.size_bytes
FROM snapshots
INNER JOIN tasks ON tasks.id = snapshots.task_id
WHERE snapshots.path > :after AND snapshots.created_at_ms < :before_ms AND tasks.updated_at_ms < :before_ms
ORDER BY snapshots.path
LIMIT :limit;

-- name: delete_stale
-- One of them, by primary key; the predicate stands here, so that a task which has moved since keeps what it has.
DELETE FROM snapshots
WHERE task_id = :task_id AND fencing_token = :fencing_token AND tokens = :tokens
    AND created_at_ms < :before_ms
    AND EXISTS (SELECT 1 FROM tasks WHERE tasks.id = snapshots.task_id AND tasks.updated_at_ms < :before_ms);

-- name: all
-- Every snapshot, for the reconciler and the checker.
SELECT task_id, path
FROM snapshots
ORDER BY path;

-- name: orphans
-- Snapshots that no owner of a task under way can have written, for the checker; reads the whole table.
SELECT task_id
FROM snapshots
WHERE NOT EXISTS (
    SELECT 1 FROM tasks
    WHERE tasks.id = snapshots.task_id
        AND tasks.state IN ('running', 'cancelling')
        AND tasks.fencing_token >= snapshots.fencing_token
)
ORDER BY task_id
LIMIT :limit;

-- name: with_sizes
-- A page of snapshots by path, by the unique index on path, for the check of the files.
SELECT path, size_bytes
FROM snapshots
WHERE path > :after
ORDER BY path
LIMIT :limit;
