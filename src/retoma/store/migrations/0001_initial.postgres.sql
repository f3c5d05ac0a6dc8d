-- Differs because: PostgreSQL writes triggers in PL/pgSQL, has bytea for BLOB and no STRICT, and sorts text by a locale
-- unless it is told not to; ids are compared byte by byte on both databases, hence COLLATE "C".
--
-- The same tables, CHECKs and triggers as in the text for SQLite beside this one. A trigger refuses with a code of the
-- class "integrity constraint violation", as a CHECK does. Functions keep the search path under which they were made, so
-- that they find their tables whoever writes.

CREATE TABLE migrations (
    version bigint PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    oldest_reader bigint NOT NULL,
    oldest_writer bigint NOT NULL,
    applied_at_ms bigint NOT NULL
);

CREATE TABLE service_config (
    key text COLLATE "C" PRIMARY KEY,
    value text NOT NULL,
    version bigint NOT NULL CHECK (version >= 1),
    updated_at_ms bigint NOT NULL
);

CREATE TABLE clients (
    id text COLLATE "C" PRIMARY KEY,
    name text NOT NULL,
    token_hash bytea NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    scopes text NOT NULL,
    version bigint NOT NULL CHECK (version >= 1),
    created_at_ms bigint NOT NULL,
    last_used_at_ms bigint,
    revoked_at_ms bigint
);

CREATE TABLE models (
    name text COLLATE "C" PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    digest text COLLATE "C" NOT NULL CHECK (length(digest) = 64),
    size_bytes bigint NOT NULL CHECK (size_bytes >= 0),
    engine text NOT NULL,
    source text NOT NULL,
    state text NOT NULL CHECK (state IN ('available', 'corrupt')),
    facts text NOT NULL,
    version bigint NOT NULL CHECK (version >= 1),
    created_at_ms bigint NOT NULL
);

CREATE INDEX models_by_digest ON models (digest);

CREATE TABLE instances (
    id text COLLATE "C" PRIMARY KEY,
    host text NOT NULL,
    boot_id text NOT NULL,
    pid bigint NOT NULL,
    -- By this server's clock; no instance compares it with its own.
    lease_until_ms bigint NOT NULL,
    state text NOT NULL CHECK (state IN ('alive', 'dead')),
    registered_at_ms bigint NOT NULL
);

-- An append changes no indexed column; with room on the page, it writes no index entry either.
CREATE TABLE tasks (
    id text COLLATE "C" PRIMARY KEY,
    client_id text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    mode text NOT NULL CHECK (mode IN ('foreground', 'background')),
    retention text NOT NULL CHECK (retention IN ('stored', 'unstored')),
    on_restart text NOT NULL CHECK (on_restart IN ('fail', 'retry', 'resume')),
    state text COLLATE "C" NOT NULL
        CHECK (state IN ('queued', 'loading', 'running', 'cancelling', 'completed', 'failed', 'cancelled')),
    version bigint NOT NULL CHECK (version >= 1),
    last_seq bigint NOT NULL CHECK (last_seq >= 0),
    fencing_token bigint NOT NULL CHECK (fencing_token >= 0),
    instance_id text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL CHECK (attempt >= 1),
    tokens bigint NOT NULL CHECK (tokens >= 0),
    crashes bigint NOT NULL CHECK (crashes >= 0),
    crash_tokens bigint NOT NULL CHECK (crash_tokens >= 0),
    -- Of the engine that made the committed tokens; empty before the first.
    fingerprint text NOT NULL,
    priority bigint NOT NULL,
    request text NOT NULL,
    restarts text NOT NULL,
    created_at_ms bigint NOT NULL,
    updated_at_ms bigint NOT NULL,
    finished_at_ms bigint,
    CHECK ((finished_at_ms IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled')))
) WITH (fillfactor = 80);

CREATE INDEX tasks_queue ON tasks (priority, id, instance_id) WHERE state = 'queued';
CREATE INDEX tasks_active ON tasks (instance_id, id) WHERE state IN ('loading', 'running', 'cancelling');
CREATE INDEX tasks_by_client ON tasks (client_id, id);
CREATE INDEX tasks_finished ON tasks (finished_at_ms, id) WHERE finished_at_ms IS NOT NULL;

CREATE TABLE task_events (
    task_id text COLLATE "C" NOT NULL REFERENCES tasks (id),
    seq bigint NOT NULL CHECK (seq >= 0),
    type text NOT NULL,
    -- The event as it is sent, without `type` and `sequence_number`, which are put in front.
    body text NOT NULL,
    -- The token ids that this event committed, 4 bytes each, little-endian.
    tokens bytea NOT NULL,
    op_id text COLLATE "C" NOT NULL,
    format bigint NOT NULL,
    created_at_ms bigint NOT NULL,
    PRIMARY KEY (task_id, seq)
);

CREATE TABLE responses (
    id text COLLATE "C" PRIMARY KEY,
    client_id text COLLATE "C" NOT NULL,
    status text NOT NULL CHECK (status IN ('completed', 'incomplete', 'failed', 'cancelled')),
    body text NOT NULL,
    last_seq bigint NOT NULL,
    completed_at_ms bigint NOT NULL
);

CREATE TABLE idempotency_keys (
    client_id text COLLATE "C" NOT NULL,
    key_hash bytea NOT NULL CHECK (octet_length(key_hash) = 16),
    request_digest bytea NOT NULL CHECK (octet_length(request_digest) = 32),
    task_id text COLLATE "C" NOT NULL REFERENCES tasks (id),
    created_at_ms bigint NOT NULL,
    expires_at_ms bigint NOT NULL,
    PRIMARY KEY (client_id, key_hash)
);

CREATE INDEX idempotency_keys_by_task ON idempotency_keys (task_id);

CREATE TABLE snapshots (
    task_id text COLLATE "C" NOT NULL REFERENCES tasks (id),
    fencing_token bigint NOT NULL,
    tokens bigint NOT NULL CHECK (tokens >= 0),
    path text COLLATE "C" NOT NULL UNIQUE,
    size_bytes bigint NOT NULL,
    fingerprint text NOT NULL,
    created_at_ms bigint NOT NULL,
    PRIMARY KEY (task_id, fencing_token, tokens)
);

CREATE FUNCTION retoma_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING MESSAGE = TG_ARGV[0], ERRCODE = 'integrity_constraint_violation';
END
$$;

CREATE TRIGGER tasks_move_legally BEFORE UPDATE OF state ON tasks
FOR EACH ROW WHEN (
    OLD.state <> NEW.state AND OLD.state || ' ' || NEW.state NOT IN (
        'queued loading', 'queued failed', 'queued cancelled',
        'loading running', 'loading queued', 'loading failed', 'loading cancelling',
        'running completed', 'running queued', 'running failed', 'running cancelling',
        'cancelling cancelled'
    )
)
EXECUTE FUNCTION retoma_refuse('illegal transition of a task');

CREATE TRIGGER tasks_end_for_good BEFORE UPDATE ON tasks
FOR EACH ROW WHEN (OLD.state IN ('completed', 'failed', 'cancelled'))
EXECUTE FUNCTION retoma_refuse('a finished task does not change');

CREATE FUNCTION tasks_move_with_their_event() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NEW.last_seq <> coalesce((SELECT max(seq) FROM task_events WHERE task_id = OLD.id), -1)
        OR (NEW.state <> OLD.state OR NEW.fencing_token <> OLD.fencing_token OR NEW.tokens <> OLD.tokens)
            AND NEW.last_seq <= OLD.last_seq
        OR NEW.state <> OLD.state AND NEW.version <= OLD.version
    THEN
        RAISE EXCEPTION 'a task changes together with its event and its version'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER tasks_move_with_their_event BEFORE UPDATE ON tasks
FOR EACH ROW EXECUTE FUNCTION tasks_move_with_their_event();

CREATE TRIGGER tasks_never_fence_back BEFORE UPDATE OF fencing_token, instance_id ON tasks
FOR EACH ROW WHEN (
    NEW.fencing_token < OLD.fencing_token
    OR NEW.instance_id <> OLD.instance_id AND NEW.fencing_token = OLD.fencing_token
)
EXECUTE FUNCTION retoma_refuse('a fencing token only rises, and does so with every owner');

-- That an id is used once is the primary key's work: there is no INSERT OR REPLACE here that could get round it.
CREATE TRIGGER tasks_begin_queued BEFORE INSERT ON tasks
FOR EACH ROW WHEN (NEW.state <> 'queued' OR NEW.fencing_token <> 0)
EXECUTE FUNCTION retoma_refuse('a task begins queued, and once');

CREATE TRIGGER tasks_stay_until_finished BEFORE DELETE ON tasks
FOR EACH ROW WHEN (OLD.state NOT IN ('completed', 'failed', 'cancelled'))
EXECUTE FUNCTION retoma_refuse('an unfinished task is never deleted');

CREATE FUNCTION task_events_follow_each_other() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NEW.seq <> coalesce((SELECT max(seq) + 1 FROM task_events WHERE task_id = NEW.task_id), 0)
        OR (SELECT state FROM tasks WHERE id = NEW.task_id) IN ('completed', 'failed', 'cancelled')
    THEN
        RAISE EXCEPTION 'an event out of sequence' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER task_events_follow_each_other BEFORE INSERT ON task_events
FOR EACH ROW EXECUTE FUNCTION task_events_follow_each_other();

CREATE TRIGGER task_events_never_change BEFORE UPDATE ON task_events
FOR EACH ROW EXECUTE FUNCTION retoma_refuse('an event never changes');

CREATE FUNCTION task_events_stay_until_finished() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF (SELECT state FROM tasks WHERE id = OLD.task_id) NOT IN ('completed', 'failed', 'cancelled') THEN
        RAISE EXCEPTION 'the events of an unfinished task are never deleted'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN OLD;
END
$$;

CREATE TRIGGER task_events_stay_until_finished BEFORE DELETE ON task_events
FOR EACH ROW EXECUTE FUNCTION task_events_stay_until_finished();
