-- Differs because: PostgreSQL writes triggers, STRICT and blobs in other words; its text lies beside this one.
--
-- For the people who use a service: one-time codes that pair a client, and the outbox of webhooks. Two indexes let
-- retention find what has expired without walking past what has not.
--
-- A release that knows only schema 1 goes on with such a store. It ends tasks without touching their row in the outbox,
-- so that row is made when the task is accepted, and a newer release releases it when it finds the task ended.

CREATE TABLE pairings (
    id TEXT PRIMARY KEY,
    -- SHA-256 of the id and the code, so that equal codes don't look equal.
    code_hash BLOB NOT NULL CHECK (length(code_hash) = 32),
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    wrong_tries INTEGER NOT NULL CHECK (wrong_tries >= 0),
    created_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
    -- The webhook-id: the same for every delivery of this message.
    id TEXT PRIMARY KEY,
    task_id TEXT NOT NULL UNIQUE,
    client_id TEXT NOT NULL,
    url TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('waiting', 'pending', 'unconfirmed', 'delivered', 'failed')),
    -- What is sent, byte for byte at every try; empty until the task has ended.
    body TEXT NOT NULL,
    tries INTEGER NOT NULL CHECK (tries >= 0),
    next_at_ms INTEGER,
    last_answer TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    CHECK ((next_at_ms IS NOT NULL) = (state IN ('pending', 'unconfirmed'))),
    CHECK (body <> '' OR state IN ('waiting', 'failed'))
) STRICT, WITHOUT ROWID;

CREATE INDEX outbox_due ON outbox (next_at_ms, id) WHERE next_at_ms IS NOT NULL;
CREATE INDEX outbox_waiting ON outbox (id, task_id) WHERE state = 'waiting';
CREATE INDEX outbox_over ON outbox (updated_at_ms, id) WHERE state IN ('delivered', 'failed');
CREATE INDEX outbox_by_client ON outbox (client_id, id);

CREATE INDEX tasks_unstored ON tasks (finished_at_ms, id) WHERE finished_at_ms IS NOT NULL AND retention = 'unstored';
CREATE INDEX idempotency_keys_expiring ON idempotency_keys (expires_at_ms);

CREATE TRIGGER outbox_waits_for_the_end BEFORE UPDATE OF state ON outbox
WHEN OLD.state = 'waiting' AND NEW.state <> 'waiting'
    AND (SELECT state FROM tasks WHERE id = OLD.task_id) NOT IN ('completed', 'failed', 'cancelled')
BEGIN
    SELECT RAISE(ABORT, 'a webhook is not sent before its task has ended');
END;

CREATE TRIGGER outbox_sends_the_same BEFORE UPDATE ON outbox
WHEN OLD.state IN ('delivered', 'failed')
    OR NEW.id <> OLD.id OR NEW.task_id <> OLD.task_id OR NEW.tries < OLD.tries
    OR OLD.body <> '' AND NEW.body <> OLD.body
    OR NEW.state = 'waiting' AND OLD.state <> 'waiting'
BEGIN
    SELECT RAISE(ABORT, 'a message is sent as it was written, and is over for good');
END;
