-- Differs because: PostgreSQL writes triggers, STRICT and blobs in other words; its text lies beside this one.
--
-- The tables of requirement P-11.1, with instances and snapshots. CHECKs and triggers are the second line of defence:
-- they hold against a faulty or older writer too. Times are integers in milliseconds, UTC, unless a name says otherwise.

CREATE TABLE migrations (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    checksum TEXT NOT NULL,
    oldest_reader INTEGER NOT NULL,
    oldest_writer INTEGER NOT NULL,
    applied_at_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE service_config (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version >= 1),
    updated_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE clients (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    token_hash BLOB NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    scopes TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version >= 1),
    created_at_ms INTEGER NOT NULL,
    last_used_at_ms INTEGER,
    revoked_at_ms INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE models (
    name TEXT PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    digest TEXT NOT NULL CHECK (length(digest) = 64),
    size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
    engine TEXT NOT NULL,
    source TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('available', 'corrupt')),
    facts TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version >= 1),
    created_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX models_by_digest ON models (digest);

CREATE TABLE instances (
    id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid INTEGER NOT NULL,
    -- Counted on the machine's boot clock, which a changed wall clock does not move.
    lease_until_ms INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('alive', 'dead')),
    registered_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    client_id TEXT NOT NULL,
    model TEXT NOT NULL,
    mode TEXT NOT NULL CHECK (mode IN ('foreground', 'background')),
    retention TEXT NOT NULL CHECK (retention IN ('stored', 'unstored')),
    on_restart TEXT NOT NULL CHECK (on_restart IN ('fail', 'retry', 'resume')),
    state TEXT NOT NULL CHECK (state IN ('queued', 'loading', 'running', 'cancelling', 'completed', 'failed', 'cancelled')),
    version INTEGER NOT NULL CHECK (version >= 1),
    last_seq INTEGER NOT NULL CHECK (last_seq >= 0),
    fencing_token INTEGER NOT NULL CHECK (fencing_token >= 0),
    instance_id TEXT NOT NULL,
    attempt INTEGER NOT NULL CHECK (attempt >= 1),
    tokens INTEGER NOT NULL CHECK (tokens >= 0),
    crashes INTEGER NOT NULL CHECK (crashes >= 0),
    crash_tokens INTEGER NOT NULL CHECK (crash_tokens >= 0),
    -- Of the engine that made the committed tokens; empty before the first.
    fingerprint TEXT NOT NULL,
    priority INTEGER NOT NULL,
    request TEXT NOT NULL,
    restarts TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    finished_at_ms INTEGER,
    CHECK ((finished_at_ms IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled')))
) STRICT;

CREATE INDEX tasks_queue ON tasks (priority, id, instance_id) WHERE state = 'queued';
CREATE INDEX tasks_active ON tasks (instance_id, id) WHERE state IN ('loading', 'running', 'cancelling');
CREATE INDEX tasks_by_client ON tasks (client_id, id);
CREATE INDEX tasks_finished ON tasks (finished_at_ms, id) WHERE finished_at_ms IS NOT NULL;

CREATE TABLE task_events (
    task_id TEXT NOT NULL REFERENCES tasks (id),
    seq INTEGER NOT NULL CHECK (seq >= 0),
    type TEXT NOT NULL,
    -- The event as it is sent, without `type` and `sequence_number`, which are put in front.
    body TEXT NOT NULL,
    -- The token ids that this event committed, 4 bytes each, little-endian.
    tokens BLOB NOT NULL,
    op_id TEXT NOT NULL,
    format INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    PRIMARY KEY (task_id, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE responses (
    id TEXT PRIMARY KEY,
    client_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('completed', 'incomplete', 'failed', 'cancelled')),
    body TEXT NOT NULL,
    last_seq INTEGER NOT NULL,
    completed_at_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE idempotency_keys (
    client_id TEXT NOT NULL,
    key_hash BLOB NOT NULL CHECK (length(key_hash) = 16),
    request_digest BLOB NOT NULL CHECK (length(request_digest) = 32),
    task_id TEXT NOT NULL REFERENCES tasks (id),
    created_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    PRIMARY KEY (client_id, key_hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_keys_by_task ON idempotency_keys (task_id);

CREATE TABLE snapshots (
    task_id TEXT NOT NULL REFERENCES tasks (id),
    fencing_token INTEGER NOT NULL,
    tokens INTEGER NOT NULL CHECK (tokens >= 0),
    path TEXT NOT NULL UNIQUE,
    size_bytes INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    PRIMARY KEY (task_id, fencing_token, tokens)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER tasks_move_legally BEFORE UPDATE OF state ON tasks
WHEN OLD.state <> NEW.state AND OLD.state || ' ' || NEW.state NOT IN (
    'queued loading', 'queued failed', 'queued cancelled',
    'loading running', 'loading queued', 'loading failed', 'loading cancelling',
    'running completed', 'running queued', 'running failed', 'running cancelling',
    'cancelling cancelled'
)
BEGIN
    SELECT RAISE(ABORT, 'illegal transition of a task');
END;

CREATE TRIGGER tasks_end_for_good BEFORE UPDATE ON tasks
WHEN OLD.state IN ('completed', 'failed', 'cancelled')
BEGIN
    SELECT RAISE(ABORT, 'a finished task does not change');
END;

CREATE TRIGGER tasks_move_with_their_event BEFORE UPDATE ON tasks
WHEN NEW.last_seq <> coalesce((SELECT max(seq) FROM task_events WHERE task_id = OLD.id), -1)
    OR (NEW.state <> OLD.state OR NEW.fencing_token <> OLD.fencing_token OR NEW.tokens <> OLD.tokens)
        AND NEW.last_seq <= OLD.last_seq
    OR NEW.state <> OLD.state AND NEW.version <= OLD.version
BEGIN
    SELECT RAISE(ABORT, 'a task changes together with its event and its version');
END;

CREATE TRIGGER tasks_never_fence_back BEFORE UPDATE OF fencing_token, instance_id ON tasks
WHEN NEW.fencing_token < OLD.fencing_token OR NEW.instance_id <> OLD.instance_id AND NEW.fencing_token = OLD.fencing_token
BEGIN
    SELECT RAISE(ABORT, 'a fencing token only rises, and does so with every owner');
END;

-- The last clause is for INSERT OR REPLACE, which deletes the old row without passing the trigger on deletes.
CREATE TRIGGER tasks_begin_queued BEFORE INSERT ON tasks
WHEN NEW.state <> 'queued' OR NEW.fencing_token <> 0 OR EXISTS (SELECT 1 FROM tasks WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'a task begins queued, and once');
END;

CREATE TRIGGER tasks_stay_until_finished BEFORE DELETE ON tasks
WHEN OLD.state NOT IN ('completed', 'failed', 'cancelled')
BEGIN
    SELECT RAISE(ABORT, 'an unfinished task is never deleted');
END;

CREATE TRIGGER task_events_follow_each_other BEFORE INSERT ON task_events
WHEN NEW.seq <> coalesce((SELECT max(seq) + 1 FROM task_events WHERE task_id = NEW.task_id), 0)
    OR (SELECT state FROM tasks WHERE id = NEW.task_id) IN ('completed', 'failed', 'cancelled')
BEGIN
    SELECT RAISE(ABORT, 'an event out of sequence');
END;

CREATE TRIGGER task_events_never_change BEFORE UPDATE ON task_events
BEGIN
    SELECT RAISE(ABORT, 'an event never changes');
END;

CREATE TRIGGER task_events_stay_until_finished BEFORE DELETE ON task_events
WHEN (SELECT state FROM tasks WHERE id = OLD.task_id) NOT IN ('completed', 'failed', 'cancelled')
BEGIN
    SELECT RAISE(ABORT, 'the events of an unfinished task are never deleted');
END;
