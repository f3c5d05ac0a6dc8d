"""Every bound of the system in one place: nothing in Retoma grows without one."""

from __future__ import annotations

# Requests
REQUEST_BYTES_MAX = 8 * 1024 * 1024
IDEMPOTENCY_KEY_CHARS_MAX = 255
METADATA_PAIRS_MAX = 16
METADATA_KEY_CHARS_MAX = 64
METADATA_VALUE_CHARS_MAX = 512
STOP_STRINGS_MAX = 16
STOP_STRING_CHARS_MAX = 256
INPUT_ITEMS_MAX = 10_000
OUTPUT_TOKENS_MAX = 1_000_000
PAGE_ITEMS_MAX = 100
EVENTS_PAGE_MAX = 1_000

# The store's writer
WRITER_QUEUE_MAX = 10_000
WRITER_BATCH_MAX = 512
WRITER_GATHER_US = 200
COMMIT_TRIES_MAX = 3
# A function that met another transaction's lock, deadlock or new key is run so often before its client hears of it.
RACED_TRIES_MAX = 4
BUSY_WAIT_MS_MAX = 10_000
CHECKPOINT_PAGES = 1_000
# Free pages of a SQLite file are given back while they are more than this and than this share of it, then down to the
# lower share: a file that will grow again anyway is left alone. A step is one short transaction.
FREE_BYTES_KEPT = 64 * 1024 * 1024
FREE_SHARE_MAX = 0.25
FREE_SHARE_KEPT = 0.1
GIVE_BACK_PAGES = 256
# A WAL that was made long by a reader is cut to this once it begins anew.
WAL_BYTES_KEPT = 64 * 1024 * 1024

# Tasks
QUEUED_TASKS_MAX = 10_000
RECOVERY_BATCH_MAX = 100
RESTARTS_KEPT_MAX = 32
# A text that kills its engine without getting further than before is tried this often, then failed (`engine_crashed`).
CRASHES_WITHOUT_PROGRESS_MAX = 3
APPEND_TOKENS_MAX = 512
PRUNE_BATCH_MAX = 100
# A batch of retention ends with the task that takes it past this: every client of the store waits behind it.
PRUNE_BATCH_BYTES = 16 * 1024 * 1024

# Webhooks
WEBHOOK_URL_CHARS_MAX = 2_048
WEBHOOK_RETRY_HOURS_MAX = 72
# Tries at once of one instance, and of those to one receiver: a slow one leaves the others their places.
WEBHOOK_TRIES_MAX = 32
WEBHOOK_TRIES_PER_PLACE_MAX = 4
# Due messages that one look goes through for those whose receiver has a place free.
WEBHOOK_LOOK_MESSAGES_MAX = 1_000
WEBHOOK_ANSWER_BYTES_MAX = 64 * 1024
WEBHOOKS_COUNTED_MAX = 10_000

# People
PAIRINGS_OPEN_MAX = 16
PAIRING_MS = 600_000
PAIRING_WRONG_TRIES_MAX = 5
# Over all addresses, for each instance; a code that is tried beyond that is not looked at.
PAIRING_FAILURES_PER_MINUTE_MAX = 20
PAIRING_BYTES_MAX = 4096
CLIENT_NAME_CHARS_MAX = 100

# Engines
FRAME_BYTES_MAX = 64 * 1024 * 1024
PREFILL_CHUNK_TOKENS = 256
SNAPSHOTS_KEPT = 2
# A snapshot must save at least this multiple of its own cost, and writing them may take this share of the time.
SNAPSHOT_GAIN_MIN = 4.0
SNAPSHOT_TIME_SHARE_MAX = 0.02
SNAPSHOT_BYTES_MAX = 4 * 1024**3
