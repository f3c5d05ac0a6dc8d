-- name: insert
-- A new task; its first events follow in the same transaction.
INSERT INTO tasks (
    id, client_id, model, mode, retention, on_restart, state, version, last_seq, fencing_token, instance_id, attempt,
    tokens, crashes, crash_tokens, fingerprint, priority, request, restarts, created_at_ms, updated_at_ms, finished_at_ms
) VALUES (
    :id, :client_id, :model, :mode, :retention, :on_restart, 'queued', 1, 1, 0, :instance_id, 1,
    0, 0, 0, '', :priority, :request, '[]', :now_ms, :now_ms, NULL
);

-- name: lock
-- The whole row by primary key, locked until the end of the transaction: what every guarded change begins with.
SELECT
    id, client_id, model, mode, retention, on_restart, state, version, last_seq, fencing_token, instance_id, attempt,
    tokens, crashes, crash_tokens, fingerprint, priority, request, restarts, created_at_ms, updated_at_ms, finished_at_ms
FROM tasks
WHERE id = :id
$FOR_UPDATE;

-- name: lock_progress
-- The few columns that an append checks, by primary key; the request may be long and is left where it is.
SELECT state, fencing_token, last_seq
FROM tasks
WHERE id = :id
$FOR_UPDATE;

-- name: move
-- Every change of state goes through here. The guard repeats what was checked under the lock: a second line.
UPDATE tasks
SET
    state = :state,
    version = version + 1,
    last_seq = :last_seq,
    fencing_token = :fencing_token,
    instance_id = :instance_id,
    attempt = :attempt,
    tokens = :tokens,
    crashes = :crashes,
    crash_tokens = :crash_tokens,
    fingerprint = :fingerprint,
    restarts = :restarts,
    updated_at_ms = :now_ms,
    finished_at_ms = CAST(:finished_at_ms AS bigint)
WHERE id = :id AND state = :old_state AND version = :old_version AND fencing_token = :old_fencing_token;

-- name: advance
-- Output was appended: the owner's token, the state and the expected place in the log are the guard.
UPDATE tasks
SET last_seq = :last_seq, tokens = tokens + :tokens, updated_at_ms = :now_ms
WHERE id = :id AND fencing_token = :fencing_token AND state = 'running' AND last_seq = :old_last_seq;

-- name: first_queued
-- The next task to work on, by the partial index tasks_queue; rows that another instance is claiming are passed over.
SELECT id
FROM tasks
WHERE state = 'queued'
ORDER BY priority, id
LIMIT 1
$SKIP_LOCKED;

-- name: queued_after
-- A page of the queue with the models, by the partial index tasks_queue, for who can't take every model; not locked.
SELECT priority, id, model
FROM tasks
WHERE state = 'queued' AND (priority > :priority OR priority = :priority AND id > :id)
ORDER BY priority, id
LIMIT :limit;

-- name: lock_queued
-- The state of one task, locked, by primary key; nothing if another instance is claiming it.
SELECT state
FROM tasks
WHERE id = :id
$SKIP_LOCKED;

-- name: active
-- What an instance works on, by the partial index tasks_active; at most a few more than it has workers.
SELECT id, state
FROM tasks
WHERE instance_id = :instance_id AND state IN ('loading', 'running', 'cancelling')
ORDER BY id
LIMIT :limit;

-- name: queued_of
-- The queued tasks of one instance, by the partial index tasks_queue, one batch.
SELECT id
FROM tasks
WHERE state = 'queued' AND instance_id = :instance_id
ORDER BY priority, id
LIMIT :limit;

-- name: owners
-- Which instances own unfinished tasks, from the two partial indexes; some may have no row in `instances` any more.
SELECT instance_id FROM tasks WHERE state IN ('loading', 'running', 'cancelling')
UNION
SELECT instance_id FROM tasks WHERE state = 'queued'
ORDER BY instance_id;

-- name: read
-- One task by primary key.
SELECT
    id, client_id, model, mode, retention, on_restart, state, version, last_seq, fencing_token, instance_id, attempt,
    tokens, crashes, crash_tokens, fingerprint, priority, request, restarts, created_at_ms, updated_at_ms, finished_at_ms
FROM tasks
WHERE id = :id;

-- name: state
-- What a follower needs to know about a task, by primary key.
SELECT client_id, state, last_seq
FROM tasks
WHERE id = :id;

-- name: page
-- The operator's list, newest first, by primary key; an empty filter takes all.
SELECT
    id, client_id, model, mode, retention, on_restart, state, version, last_seq, fencing_token, instance_id, attempt,
    tokens, crashes, crash_tokens, fingerprint, priority, request, restarts, created_at_ms, updated_at_ms, finished_at_ms
FROM tasks
WHERE id < :before
    AND (CAST(:state AS text) = '' OR state = CAST(:state AS text))
    AND (CAST(:client_id AS text) = '' OR client_id = CAST(:client_id AS text))
ORDER BY id DESC
LIMIT :limit;

-- name: queue_length
-- How many wait, counted up to a bound, by the partial index tasks_queue.
SELECT count(*)
FROM (SELECT id FROM tasks WHERE state = 'queued' LIMIT :limit) AS waiting;

-- name: queue_position
-- How many are before this one, counted up to a bound, by the partial index tasks_queue.
SELECT count(*)
FROM (
    SELECT id FROM tasks
    WHERE state = 'queued' AND (priority < :priority OR priority = :priority AND id < :id)
    LIMIT :limit
) AS waiting;

-- name: counts
-- Tasks per state, for people; reads the whole table.
SELECT state, count(*)
FROM tasks
GROUP BY state
ORDER BY state;

-- name: unfinished_with_model
-- How many unfinished tasks need this model, from the two partial indexes; finished ones may be many.
SELECT count(*)
FROM (
    SELECT id FROM tasks WHERE state = 'queued' AND model = :model
    UNION ALL
    SELECT id FROM tasks WHERE state IN ('loading', 'running', 'cancelling') AND model = :model
) AS needing;

-- name: expired_stored
-- A page of what has been finished for long enough, from behind a place on, by the partial index tasks_finished. Those
-- of another retention and those whose key is still valid are shown as well, so that a page never looks at more rows.
SELECT
    finished_at_ms, id, retention, last_seq, octet_length(request),
    EXISTS (
        SELECT 1 FROM idempotency_keys
        WHERE idempotency_keys.task_id = tasks.id AND idempotency_keys.expires_at_ms >= :now_ms
    )
FROM tasks
WHERE finished_at_ms IS NOT NULL
    AND finished_at_ms < :before_ms
    AND finished_at_ms >= :after_ms AND (finished_at_ms > :after_ms OR id > :after_id)
ORDER BY finished_at_ms, id
LIMIT :limit;

-- name: expired_unstored
-- The same of store=false alone, by the partial index tasks_unstored: however many stored ones there are.
SELECT
    finished_at_ms, id, retention, last_seq, octet_length(request),
    EXISTS (
        SELECT 1 FROM idempotency_keys
        WHERE idempotency_keys.task_id = tasks.id AND idempotency_keys.expires_at_ms >= :now_ms
    )
FROM tasks
WHERE finished_at_ms IS NOT NULL
    AND retention = 'unstored'
    AND finished_at_ms < :before_ms
    AND finished_at_ms >= :after_ms AND (finished_at_ms > :after_ms OR id > :after_id)
ORDER BY finished_at_ms, id
LIMIT :limit;

-- name: lock_expired
-- One task that was found before, locked if it may still go, by primary key; nothing if another instance deletes it.
SELECT id
FROM tasks
WHERE id = :id
    AND state IN ('completed', 'failed', 'cancelled')
    AND retention = :retention
    AND finished_at_ms < :before_ms
    AND NOT EXISTS (
        SELECT 1 FROM idempotency_keys
        WHERE idempotency_keys.task_id = tasks.id AND idempotency_keys.expires_at_ms >= :now_ms
    )
$SKIP_LOCKED;

-- name: delete_expired
-- The same task, by primary key; the predicate stands here, in the deleting statement, whatever was found before.
DELETE FROM tasks
WHERE id = :id
    AND state IN ('completed', 'failed', 'cancelled')
    AND retention = :retention
    AND finished_at_ms < :before_ms
    AND NOT EXISTS (
        SELECT 1 FROM idempotency_keys
        WHERE idempotency_keys.task_id = tasks.id AND idempotency_keys.expires_at_ms >= :now_ms
    );

-- name: newest_finished
-- When the last task ended, by the partial index tasks_finished.
SELECT finished_at_ms
FROM tasks
WHERE finished_at_ms IS NOT NULL
ORDER BY finished_at_ms DESC, id DESC
LIMIT 1;

-- name: weight
-- What a finished task takes: its events, the bytes of their bodies, of the response and of the request; reads its
-- whole log, by primary key.
SELECT
    last_seq + 1,
    octet_length(request)
    + coalesce((SELECT octet_length(body) FROM responses WHERE responses.id = tasks.id), 0)
    + coalesce((SELECT sum(octet_length(body)) FROM task_events WHERE task_events.task_id = tasks.id), 0)
FROM tasks
WHERE id = :id;

-- name: delete_finished
-- One finished task; the predicate stands here, in the deleting statement, whatever was selected before.
DELETE FROM tasks
WHERE id = :id AND state IN ('completed', 'failed', 'cancelled');

-- name: audit_page
-- A page of tasks, oldest first, by primary key, for the checker.
SELECT
    id, client_id, model, mode, retention, on_restart, state, version, last_seq, fencing_token, instance_id, attempt,
    tokens, crashes, crash_tokens, fingerprint, priority, request, restarts, created_at_ms, updated_at_ms, finished_at_ms
FROM tasks
WHERE id > :after
ORDER BY id
LIMIT :limit;

-- name: finished_page
-- A page of finished tasks, by primary key, for deriving their responses again.
SELECT id, client_id, finished_at_ms
FROM tasks
WHERE id > :after AND finished_at_ms IS NOT NULL
ORDER BY id
LIMIT :limit;

-- name: briefs
-- A page of the operator's list without the requests, which may be long, newest first, by primary key.
SELECT
    id, client_id, model, mode, on_restart, state, version, instance_id, attempt, tokens, restarts, created_at_ms,
    updated_at_ms, finished_at_ms
FROM tasks
WHERE id < :before AND (CAST(:state AS text) = '' OR state = CAST(:state AS text))
ORDER BY id DESC
LIMIT :limit;

-- name: briefs_under_way
-- What all instances work on, without the requests, by the partial index tasks_active.
SELECT
    id, client_id, model, mode, on_restart, state, version, instance_id, attempt, tokens, restarts, created_at_ms,
    updated_at_ms, finished_at_ms
FROM tasks
WHERE state IN ('loading', 'running', 'cancelling')
ORDER BY instance_id, id
LIMIT :limit;

-- name: briefs_queued
-- The head of the queue, without the requests, by the partial index tasks_queue.
SELECT
    id, client_id, model, mode, on_restart, state, version, instance_id, attempt, tokens, restarts, created_at_ms,
    updated_at_ms, finished_at_ms
FROM tasks
WHERE state = 'queued'
ORDER BY priority, id
LIMIT :limit;

-- name: briefs_ended
-- The tasks that were the last to end, without the requests, by the partial index tasks_finished.
SELECT
    id, client_id, model, mode, on_restart, state, version, instance_id, attempt, tokens, restarts, created_at_ms,
    updated_at_ms, finished_at_ms
FROM tasks
WHERE finished_at_ms IS NOT NULL
ORDER BY finished_at_ms DESC, id DESC
LIMIT :limit;

-- name: count_waiting
-- How many wait, and which of them was accepted first, by the partial index tasks_queue.
SELECT count(*), min(id)
FROM tasks
WHERE state = 'queued';

-- name: count_under_way
-- How many are in each of the other unfinished states, by the partial index tasks_active; finished ones may be many.
SELECT
    count(CASE WHEN state = 'loading' THEN 1 END),
    count(CASE WHEN state = 'running' THEN 1 END),
    count(CASE WHEN state = 'cancelling' THEN 1 END)
FROM tasks
WHERE state IN ('loading', 'running', 'cancelling');

-- name: accepted_at
-- When a task was accepted, by primary key.
SELECT created_at_ms
FROM tasks
WHERE id = :id;
