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
