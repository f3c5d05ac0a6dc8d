-- Differs because: PostgreSQL writes triggers in PL/pgSQL, has bytea for BLOB and no STRICT, and sorts text by a locale
-- unless it is told not to.
--
-- For the people who use a service: the same tables, CHECKs and triggers as in the text for SQLite beside this one. Two
-- triggers more: TRUNCATE, which SQLite doesn't have, deletes without passing the triggers on rows.

CREATE TABLE pairings (
    id text COLLATE "C" PRIMARY KEY,
    -- SHA-256 of the id and the code, so that equal codes don't look equal.
    code_hash bytea NOT NULL CHECK (octet_length(code_hash) = 32),
    name text NOT NULL,
    scopes text NOT NULL,
    wrong_tries bigint NOT NULL CHECK (wrong_tries >= 0),
    created_at_ms bigint NOT NULL,
    expires_at_ms bigint NOT NULL
);

CREATE TABLE outbox (
    -- The webhook-id: the same for every delivery of this message.
    id text COLLATE "C" PRIMARY KEY,
    task_id text COLLATE "C" NOT NULL UNIQUE,
    client_id text COLLATE "C" NOT NULL,
    url text NOT NULL,
    state text COLLATE "C" NOT NULL CHECK (state IN ('waiting', 'pending', 'unconfirmed', 'delivered', 'failed')),
    -- What is sent, byte for byte at every try; empty until the task has ended.
    body text NOT NULL,
    tries bigint NOT NULL CHECK (tries >= 0),
    next_at_ms bigint,
    last_answer text NOT NULL,
    created_at_ms bigint NOT NULL,
    updated_at_ms bigint NOT NULL,
    CHECK ((next_at_ms IS NOT NULL) = (state IN ('pending', 'unconfirmed'))),
    CHECK (body <> '' OR state IN ('waiting', 'failed'))
);

CREATE INDEX outbox_due ON outbox (next_at_ms, id) WHERE next_at_ms IS NOT NULL;
CREATE INDEX outbox_waiting ON outbox (id, task_id) WHERE state = 'waiting';
CREATE INDEX outbox_over ON outbox (updated_at_ms, id) WHERE state IN ('delivered', 'failed');
CREATE INDEX outbox_by_client ON outbox (client_id, id);

CREATE INDEX tasks_unstored ON tasks (finished_at_ms, id) WHERE finished_at_ms IS NOT NULL AND retention = 'unstored';
CREATE INDEX idempotency_keys_expiring ON idempotency_keys (expires_at_ms);

CREATE FUNCTION outbox_waits_for_the_end() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF OLD.state = 'waiting' AND NEW.state <> 'waiting'
        AND (SELECT state FROM tasks WHERE id = OLD.task_id) NOT IN ('completed', 'failed', 'cancelled')
    THEN
        RAISE EXCEPTION 'a webhook is not sent before its task has ended'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER outbox_waits_for_the_end BEFORE UPDATE OF state ON outbox
FOR EACH ROW EXECUTE FUNCTION outbox_waits_for_the_end();

CREATE TRIGGER outbox_sends_the_same BEFORE UPDATE ON outbox
FOR EACH ROW WHEN (
    OLD.state IN ('delivered', 'failed')
    OR NEW.id <> OLD.id OR NEW.task_id <> OLD.task_id OR NEW.tries < OLD.tries
    OR OLD.body <> '' AND NEW.body <> OLD.body
    OR NEW.state = 'waiting' AND OLD.state <> 'waiting'
)
EXECUTE FUNCTION retoma_refuse('a message is sent as it was written, and is over for good');

CREATE TRIGGER tasks_are_never_truncated BEFORE TRUNCATE ON tasks
FOR EACH STATEMENT EXECUTE FUNCTION retoma_refuse('tasks are deleted one by one, once they are finished');

CREATE TRIGGER task_events_are_never_truncated BEFORE TRUNCATE ON task_events
FOR EACH STATEMENT EXECUTE FUNCTION retoma_refuse('events are deleted with their finished task');
