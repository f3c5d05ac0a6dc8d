-- name: insert
-- One event at the end of its task's log.
INSERT INTO task_events (task_id, seq, type, body, tokens, op_id, format, created_at_ms)
VALUES (:task_id, :seq, :type, :body, :tokens, :op_id, :format, :now_ms);

-- name: after
-- A page of a task's log, by primary key.
SELECT seq, type, body
FROM task_events
WHERE task_id = :task_id AND seq > :after
ORDER BY seq
LIMIT :limit;

-- name: whole
-- A task's whole log, to fold it, by primary key.
SELECT seq, type, body, tokens
FROM task_events
WHERE task_id = :task_id
ORDER BY seq;

-- name: op_at
-- Which command wrote the event at this place, by primary key.
SELECT op_id
FROM task_events
WHERE task_id = :task_id AND seq = :seq;

-- name: of_op
-- The last event that a command wrote, within one task's part of the primary key.
SELECT max(seq)
FROM task_events
WHERE task_id = :task_id AND op_id = :op_id;

-- name: delete_of_task
-- The log of a task that is being deleted; a trigger refuses it for an unfinished one.
DELETE FROM task_events
WHERE task_id = :task_id;

-- name: audit_page
-- A page of a task's log with all that the checker looks at, by primary key.
SELECT seq, type, body, tokens, op_id
FROM task_events
WHERE task_id = :task_id AND seq > :after
ORDER BY seq
LIMIT :limit;

-- name: orphans
-- Events of no task, for the checker; reads the whole table.
SELECT DISTINCT task_id
FROM task_events
WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = task_events.task_id)
ORDER BY task_id
LIMIT :limit;

-- name: lately
-- The last events of a task and how many bytes of token ids each committed, by primary key.
SELECT seq, length(tokens), created_at_ms
FROM task_events
WHERE task_id = :task_id
ORDER BY seq DESC
LIMIT :limit;

-- name: turns
-- The changes of state in a task's log, newest first, each with the time of the event before it, by primary key.
SELECT
    seq, type, body, created_at_ms,
    (
        SELECT earlier.created_at_ms FROM task_events AS earlier
        WHERE earlier.task_id = task_events.task_id AND earlier.seq = task_events.seq - 1
    )
FROM task_events
WHERE task_id = :task_id
    AND type IN (
        'response.created', 'response.queued', 'response.in_progress',
        'response.completed', 'response.incomplete', 'response.failed', 'response.cancelled'
    )
ORDER BY seq DESC
LIMIT :limit;
