"""The requirements, one line each in our own words; what each asks in full is in the documents they come from.

P is chapter 11 (persistence) of the local AI service specification, S is the BE-STATE profile for stateful backends.
"""

from __future__ import annotations

REQUIREMENTS = {
    "P-11.1-sqlite": "Without any setting, state is kept in a SQLite database inside the service.",
    "P-11.1-tables": (
        "The store holds configuration, clients, models, responses, tasks, each task's numbered events, "
        "and idempotency keys."
    ),
    "P-11.1-files": "Model files lie outside the database, which holds their metadata and digests only.",
    "P-11.2-persist": "A task is durable before its `202 Accepted` is sent.",
    "P-11.2-seq": "An event's sequence number and its task's state change in one transaction.",
    "P-11.2-cancel": "A cancel is atomic: a task that was cancelled never completes, whatever the race.",
    "P-11.2-retain": "Finished tasks and their events are kept for a period that can be set.",
    "P-11.2-never": "Clean-up never deletes an unfinished task.",
    "P-11.2-startup": "At start every task left behind unfinished is looked at and its `on_restart` policy applied.",
    "P-11.3-table": "Each of the twelve cells of the restart table leads to the state it names, on each store.",
    "P-11.3-events": (
        "A task that a restart fails carries `server_restarted` and `response.failed`, one that it cancels carries "
        "`response.cancelled`; state and event are written together."
    ),
    "S-001": "Every durable state has an owner, a source of truth, a key, invariants and a transaction boundary.",
    "S-002": "Nothing depends on the next request reaching the same instance, or on a lock inside one process.",
    "S-003": "Two operations on one object conflict with a defined result; no update is lost in silence.",
    "S-004": "New code reads the previous version's data, and going back never needs the old code to read the new.",
    "S-005": "What can stop half-way is atomic, or stores what it takes to go on; success is never marked early.",
    "S-006": "Ownership carries a rising fencing token, and the store refuses a write with an older one.",
    "S-007": (
        "An effect in two systems has one id, an order of commits and a way on after each; an answer that got lost is "
        "never called a failure."
    ),
}

# The checks that the profile asks for, each a requirement of its own: S-003b is check b of S-003.
CHECKS = {
    "S-001a": "Boundaries of model and repository can be reviewed: a page of states, import contracts.",
    "S-001b": "The invariants of a transaction are tested.",
    "S-001c": "Derived state is dropped, made again, and is equal.",
    "S-002a": "Two instances work on one store at once.",
    "S-002b": "The service restarts between operations that belong together.",
    "S-002c": "One object is changed at once by processes that share no lock of their own.",
    "S-002d": "Where there can be one writer only, a second one is refused.",
    "S-003a": "Operations on one object at once.",
    "S-003b": "A command under a stale version.",
    "S-003c": "What a conflict's result looks like to a client.",
    "S-004a": "A store of the previous version is read and continued.",
    "S-004b": "Two versions at once on one store, and the way back.",
    "S-004c": "Schemas are checked for compatibility.",
    "S-005a": "A fault after each step that writes.",
    "S-005b": "The same operation is run again.",
    "S-005c": "Success is never told or stored too early.",
    "S-006a": "An owner is paused, cut off, or renews too late.",
    "S-006b": "The old and the new owner write at once.",
    "S-006c": "A stale fencing token is refused.",
    "S-007a": "A fault after each of several independent commits.",
    "S-007b": "A restart from each state in between.",
    "S-007c": "What was begun is continued, compensated or reconciled.",
    "S-007d": "The answer when the confirmation of an effect can't be had.",
}
