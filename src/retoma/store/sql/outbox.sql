-- name: insert
-- The row of a message that waits for the end of its task; written with the task.
INSERT INTO outbox (
    id, task_id, client_id, url, state, body, tries, next_at_ms, last_answer, created_at_ms, updated_at_ms
) VALUES (
    :id, :task_id, :client_id, :url, 'waiting', '', 0, NULL, '', :now_ms, :now_ms
);

-- name: release
-- The task has ended in this transaction or before: the message gets its body and is due. By primary key.
UPDATE outbox
SET state = 'pending', body = :body, next_at_ms = :now_ms, updated_at_ms = :now_ms
WHERE id = :id AND state = 'waiting';

-- name: ended
-- How the task of a message that still waits has ended, by primary key of all three tables; nothing if it has not.
SELECT responses.status, tasks.finished_at_ms
FROM outbox
INNER JOIN tasks ON tasks.id = outbox.task_id
INNER JOIN responses ON responses.id = outbox.task_id
WHERE outbox.id = :id AND outbox.state = 'waiting' AND tasks.finished_at_ms IS NOT NULL;

-- name: left_waiting
-- A page of messages whose task has ended or is gone, as a release leaves them that knows no outbox. By the partial
-- index outbox_waiting, so the messages of unfinished tasks are walked past as well.
SELECT outbox.id, outbox.task_id
FROM outbox
LEFT JOIN tasks ON tasks.id = outbox.task_id
WHERE outbox.state = 'waiting' AND outbox.id > :after AND (tasks.id IS NULL OR tasks.finished_at_ms IS NOT NULL)
ORDER BY outbox.id
LIMIT :limit;

-- name: give_up
-- Nobody can say any more how the task ended: an older release has deleted it. By primary key.
UPDATE outbox
SET state = 'failed', last_answer = :last_answer, updated_at_ms = :now_ms
WHERE id = :id AND state = 'waiting' AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = outbox.task_id);

-- name: first_due
-- When the next try is due, by the partial index outbox_due.
SELECT next_at_ms
FROM outbox
WHERE next_at_ms IS NOT NULL
ORDER BY next_at_ms, id
LIMIT 1;

-- name: due
-- A page of messages to be sent now, by the partial index outbox_due; not locked.
SELECT next_at_ms, id, url
FROM outbox
WHERE next_at_ms <= :now_ms AND next_at_ms >= :after_ms AND (next_at_ms > :after_ms OR id > :after)
ORDER BY next_at_ms, id
LIMIT :limit;

-- name: lock_due
-- One message if it is still due, locked, by primary key; nothing if another instance is claiming it.
SELECT client_id, url, body, tries
FROM outbox
WHERE id = :id AND next_at_ms <= :now_ms
$SKIP_LOCKED;

-- name: count_try
-- Before a message is sent: from here on it may have been received. It comes due again if nothing more is heard.
UPDATE outbox
SET state = 'unconfirmed', tries = tries + 1, next_at_ms = :next_at_ms, last_answer = '', updated_at_ms = :now_ms
WHERE id = :id AND tries = :tries AND next_at_ms <= :now_ms;

-- name: write_outcome
-- What came of a try, by primary key. A later try, of whomever, has another number.
UPDATE outbox
SET
    state = :state,
    next_at_ms = CAST(:next_at_ms AS bigint),
    last_answer = :last_answer,
    updated_at_ms = :now_ms
WHERE id = :id AND tries = :tries AND state = 'unconfirmed';

-- name: count_waiting
-- How many wait for the end of their task, counted up to a bound, by the partial index outbox_waiting.
SELECT count(*)
FROM (SELECT id FROM outbox WHERE state = 'waiting' LIMIT :limit) AS waiting;

-- name: count_owed
-- How many are to be sent, and how many of those were sent before and not answered; counted up to a bound, by the
-- partial index outbox_due.
SELECT count(*), coalesce(sum(CASE WHEN state = 'unconfirmed' THEN 1 ELSE 0 END), 0)
FROM (SELECT state FROM outbox WHERE next_at_ms IS NOT NULL LIMIT :limit) AS waiting;

-- name: page
-- The operator's list, newest first, by primary key; an empty state takes all.
SELECT id, task_id, client_id, url, state, body, tries, next_at_ms, last_answer, created_at_ms, updated_at_ms
FROM outbox
WHERE id < :before AND (CAST(:state AS text) = '' OR state = CAST(:state AS text))
ORDER BY id DESC
LIMIT :limit;

-- name: page_of_client
-- A client's own list, newest first, by the index outbox_by_client; an empty state takes all.
SELECT id, task_id, client_id, url, state, body, tries, next_at_ms, last_answer, created_at_ms, updated_at_ms
FROM outbox
WHERE client_id = :client_id AND id < :before AND (CAST(:state AS text) = '' OR state = CAST(:state AS text))
ORDER BY id DESC
LIMIT :limit;

-- name: over
-- A batch of messages that were delivered or given up long ago, by the partial index outbox_over.
SELECT id
FROM outbox
WHERE state IN ('delivered', 'failed') AND updated_at_ms < :before_ms
ORDER BY updated_at_ms, id
LIMIT :limit
$SKIP_LOCKED;

-- name: delete_over
-- One of them, by primary key; the predicate stands here, in the deleting statement, whatever was selected before.
DELETE FROM outbox
WHERE id = :id AND state IN ('delivered', 'failed') AND updated_at_ms < :before_ms;

-- name: audit_page
-- A page of messages with what is left of their tasks, by primary key, for the checker.
SELECT
    outbox.id, outbox.task_id, outbox.client_id, outbox.state, outbox.body, outbox.tries,
    tasks.client_id, tasks.state, tasks.finished_at_ms, responses.status
FROM outbox
LEFT JOIN tasks ON tasks.id = outbox.task_id
LEFT JOIN responses ON responses.id = outbox.task_id
WHERE outbox.id > :after
ORDER BY outbox.id
LIMIT :limit;
