"""Sabotages: each takes one guarantee out of the product, and names the tests that must notice.

A sabotage that no test notices is a guarantee that nobody checks. Where several guards stand behind one another, all
but one are taken out, or the test that watches the guard itself is named.
"""

from __future__ import annotations

from dataclasses import dataclass

CALLS = "tests/faults/test_every_call.py"
DISK = f"{CALLS}::test_a_disk_that_fails_at_any_call_loses_nothing_and_what_was_refused_has_not_happened"
POWER = "tests/faults/test_power.py::test_files_and_rows_agree_on_every_disk_that_a_power_cut_leaves_behind"

CONFLICTS = "tests/transactions/test_conflicts.py"
LINES = "tests/crash/test_postgres_lines.py"
POINTS = "tests/transactions/test_crash_points.py"
PEOPLE = "store/migrations/0002_people.postgres.sql"


@dataclass(frozen=True, slots=True)
class Edit:
    """This text, which occurs once in the file, is replaced."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Sabotage:
    """What is broken, and the tests of which at least one must fail."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def sabotage(name: str, file: str, old: str, new: str, *tests: str) -> Sabotage:
    """The usual case: one edit."""
    return Sabotage(name, (Edit(file, old, new),), tests)


SABOTAGES = (
    # What a commit means
    sabotage(
        "synchronous = NORMAL",
        "store/sqlite.py",
        '"PRAGMA synchronous = FULL"',
        '"PRAGMA synchronous = NORMAL"',
        "tests/transactions/test_power_loss.py::test_whatever_a_power_cut_leaves_behind_holds_what_was_acknowledged",
    ),
    sabotage(
        "the reply goes out before the commit",
        "store/writer.py",
        "            self._run_item(connection, item)\n        connection.commit()",
        "            self._run_item(connection, item)\n        self._announce(batch)\n        connection.commit()",
        "tests/store/test_writer.py::test_nobody_hears_of_a_result_before_the_commit",
    ),
    sabotage(
        "an unknown commit is reported as failed",
        "store/sqlite.py",
        "            raise CommitUnknown(str(translate(error, self._path))) from error",
        "            raise translate(error, self._path) from error",
        "tests/store/test_sqlite.py::test_an_error_of_the_disk_at_the_commit_leads_to_one_effect",
    ),
    sabotage(
        "a full disk at the commit is taken for a success",
        "store/sqlite.py",
        "        except apsw.FullError as error:\n            raise translate(error, self._path) from error\n",
        "        except apsw.FullError:\n            self.rollback()\n",
        f"{DISK}[ENOSPC-once]",
    ),
    sabotage(
        "an unknown commit is not driven again",
        "store/writer.py",
        "                self.problem = unknown.message\n",
        "                self.problem = unknown.message\n                break\n",
        "tests/store/test_writer.py::test_an_unknown_commit_is_driven_again_on_a_new_connection_with_one_effect",
    ),
    sabotage(
        "readers see what is not committed",
        "store/sqlite.py",
        "        tx = self._take_reader()",
        "        tx = self._write_connection.tx if self._write_connection else self._take_reader()",
        "tests/store/test_sqlite.py::test_a_reader_sees_one_state_and_can_not_write",
    ),
    sabotage(
        "a library with the WAL-reset fault is accepted",
        "store/sqlite.py",
        "numbers >= (3, 51, 3)",
        "numbers >= (3, 51, 2)",
        "tests/faults/test_wal_reset.py",
    ),
    # Ownership
    sabotage(
        "the fencing token is not checked",
        "transactions/log.py",
        "    owned = fencing_token is None or task.fencing_token == fencing_token",
        "    owned = True",
        "tests/transactions/test_owner.py::test_a_stale_fencing_token_writes_nothing",
    ),
    Sabotage(
        "output is appended under any fencing token",
        (
            Edit("transactions/append.py", "    if fencing_token != command.fencing_token:", "    if False:"),
            Edit(
                "store/sql/tasks.sql",
                "WHERE id = :id AND fencing_token = :fencing_token AND state",
                "WHERE id = :id AND state",
            ),
        ),
        ("tests/transactions/test_owner.py::test_a_stale_fencing_token_writes_nothing",),
    ),
    sabotage(
        "a recovery gives no new fencing token",
        "transactions/recover.py",
        "fencing_token=task.fencing_token + 1,",
        "fencing_token=task.fencing_token,",
        "tests/transactions/test_recover.py::test_each_cell_of_the_restart_table_is_one_transaction_with_its_event",
    ),
    sabotage(
        "a recovery takes what somebody else has recovered",
        "transactions/recover.py",
        "    if task.instance_id != command.dead_instance_id or task.state.finished:",
        "    if task.state.finished:",
        "tests/transactions/test_recover.py::test_what_somebody_else_has_recovered_is_passed_over",
    ),
    sabotage(
        "leases are counted on the wall clock",
        "store/sqlite.py",
        "time.clock_gettime_ns(time.CLOCK_BOOTTIME)",
        "time.clock_gettime_ns(time.CLOCK_REALTIME)",
        "tests/faults/test_clocks.py",
    ),
    sabotage(
        "a renewal brings a dead instance back",
        "store/sql/instances.sql",
        "SET lease_until_ms = :lease_until_ms\nWHERE id = :id AND state = 'alive';",
        "SET lease_until_ms = :lease_until_ms, state = 'alive'\nWHERE id = :id;",
        "tests/transactions/test_registries.py::test_a_lease_is_prolonged_until_others_have_declared_the_instance_dead",
    ),
    # States
    Sabotage(
        "a cancel is checked first and acted on later",
        (
            Edit(
                "transactions/finish.py",
                "    task = log.lock_for(tx, command.task_id, verb, command.op_id, command.fencing_token)\n",
                "    task = replace(log.lock_task(tx, command.task_id), state=State.RUNNING)\n",
            ),
            Edit("transactions/finish.py", "import Command\n", "import Command, State\n"),
            Edit("store/sql/tasks.sql", "AND state = :old_state AND version = :old_version AND", "AND"),
        ),
        ("tests/transactions/test_owner.py::test_no_completion_wins_once_a_cancel_is_committed",),
    ),
    sabotage(
        "a cancelled task may complete",
        "core/transitions.py",
        "        (State.CANCELLING, Command.CONFIRM_CANCEL): State.CANCELLED,\n",
        "        (State.CANCELLING, Command.CONFIRM_CANCEL): State.CANCELLED,\n"
        "        (State.CANCELLING, Command.COMPLETE): State.COMPLETED,\n",
        "tests/core/test_transitions.py",
    ),
    sabotage(
        "a cell of the restart table is another",
        "core/restart.py",
        "            OnRestart.RESUME: Command.CONTINUE,",
        "            OnRestart.RESUME: Command.REQUEUE,",
        "tests/core/test_restart.py",
    ),
    sabotage(
        "the version is not checked",
        "transactions/cancel.py",
        "    if command.version is not None and command.version != task.version:",
        "    if False:",
        "tests/transactions/test_cancel.py::"
        "test_a_cancel_under_an_old_version_changes_nothing_unless_it_was_its_own_doing",
    ),
    sabotage(
        "an event is written without its state",
        "transactions/append.py",
        "    changed = tx.execute(\n        ADVANCE,\n",
        "    changed = 1 or tx.execute(\n        ADVANCE,\n",
        "tests/transactions/test_owner.py::test_output_and_the_place_in_the_log_change_together",
    ),
    # Once and only once
    sabotage(
        "an append that is driven again is appended again",
        "transactions/append.py",
        "    if row is not None and row[0] == command.op_id:",
        "    if False:",
        "tests/transactions/test_owner.py::test_append_driven_again_has_one_effect_also_after_a_cancel",
    ),
    sabotage(
        "a request that is driven again is accepted again",
        "transactions/accept.py",
        "    if log.read_state(tx, command.task_id) is not None:",
        "    if False:",
        "tests/transactions/test_accept.py::test_the_same_command_driven_again_has_one_effect",
    ),
    Sabotage(
        "the idempotency key is written in a second transaction",
        (
            Edit(
                "transactions/accept.py",
                "    if command.key is not None:\n        _write_key(tx, command, command.key)\n    passing",
                "    passing",
            ),
            Edit(
                "runtime/instance.py",
                "        accepted = await self._store.transact(partial(accept, command=command))\n",
                "        accepted = await self._store.transact(partial(accept, command=command))\n"
                "        if command.key is not None and not accepted.replayed:\n"
                "            from retoma.transactions.accept import _write_key\n"
                "            await self._store.transact(lambda tx: _write_key(tx, command, command.key))\n",
            ),
        ),
        (
            "tests/crash/test_failpoints.py::"
            "test_a_service_that_dies_at_a_failpoint_loses_and_doubles_nothing[accept.committed]",
        ),
    ),
    # Clean-up
    Sabotage(
        "clean-up deletes by ids, whatever they are by then",
        (
            Edit(
                "store/sql/tasks.sql",
                "DELETE FROM tasks\nWHERE id = :id\n    AND state IN ('completed', 'failed', 'cancelled')\n"
                "    AND retention = :retention\n    AND finished_at_ms < :before_ms\n",
                "DELETE FROM tasks\nWHERE id = :id\n",
            ),
            Edit(
                "store/migrations/0001_initial.sqlite.sql",
                "WHEN (SELECT state FROM tasks WHERE id = OLD.task_id) NOT IN ('completed', 'failed', 'cancelled')",
                "WHEN 1 = 0",
            ),
            Edit(
                "store/migrations/0001_initial.sqlite.sql",
                "BEFORE DELETE ON tasks\nWHEN OLD.state NOT IN ('completed', 'failed', 'cancelled')",
                "BEFORE DELETE ON tasks\nWHEN 1 = 0",
            ),
        ),
        (
            "tests/transactions/test_retention.py::"
            "test_the_deleting_statement_itself_and_the_triggers_behind_it_keep_an_unfinished_task",
        ),
    ),
    sabotage(
        "the trigger lets an unfinished task be deleted",
        "store/migrations/0001_initial.sqlite.sql",
        "BEFORE DELETE ON tasks\nWHEN OLD.state NOT IN ('completed', 'failed', 'cancelled')",
        "BEFORE DELETE ON tasks\nWHEN OLD.state NOT IN ('completed', 'failed', 'cancelled', 'queued')",
        "tests/store/test_triggers.py::test_an_unfinished_task_and_its_events_are_never_deleted",
    ),
    # Files and their rows
    sabotage(
        "a snapshot is not synced",
        "engines/snapshots.py",
        "        os.fsync(file.fileno())\n",
        "",
        POWER,
    ),
    sabotage(
        "a snapshot's name is not synced",
        "engines/snapshots.py",
        "        _sync_directory(path.parent)\n        passing(Failpoint.SNAPSHOT_SYNCED)",
        "        passing(Failpoint.SNAPSHOT_SYNCED)",
        POWER,
    ),
    sabotage(
        "a model's bytes are not synced",
        "blobs/models.py",
        "        os.fsync(writing.fileno())\n",
        "",
        POWER,
    ),
    sabotage(
        "a model's name is not synced",
        "blobs/models.py",
        "        passing(Failpoint.MODEL_RENAMED)\n        sync_directory(target.parent)\n",
        "        passing(Failpoint.MODEL_RENAMED)\n",
        POWER,
    ),
    sabotage(
        "a snapshot is registered although the disk refused it",
        "engines/snapshots.py",
        "            temporary.unlink(missing_ok=True)\n        return None\n",
        "            temporary.unlink(missing_ok=True)\n",
        f"{DISK}[EIO-once]",
    ),
    sabotage(
        "a snapshot's row is written before its file",
        "engines/checkpoints.py",
        "        file_bytes = snapshots.write(Path(path), self._key, tokens[:count], state)\n",
        "        import threading\n"
        "        later = (Path(path), self._key, tokens[:count], bytes(state))\n"
        "        threading.Timer(0.3, snapshots.write, later).start()\n"
        "        file_bytes: int | None = len(bytes(state))\n",
        "tests/engines/test_scripted.py",
    ),
    Sabotage(
        "a model's row is written before its file",
        (
            Edit(
                "cli/models.py",
                "                imported = here.model_files.import_file(path, told)\n",
                "                import hashlib\n"
                "                digest = hashlib.sha256(path.read_bytes()).hexdigest()\n"
                "                early = RegisterModel(name, digest, path.stat().st_size, 'llama', source, facts, 0)\n"
                "                here.store.transact(partial(register_model, command=early))\n"
                "                imported = here.model_files.import_file(path, told)\n",
            ),
        ),
        (
            "tests/cli/test_models.py::test_a_killed_add_leaves_nothing_half_registered_and_can_be_repeated[model.staged]",
        ),
    ),
    sabotage(
        "a snapshot is trusted without its checksum",
        "engines/snapshots.py",
        "    if len(state) != state_bytes or _digest(state) != checksum:",
        "    if len(state) != state_bytes:",
        "tests/engines/test_snapshots.py::test_every_flipped_bit_is_noticed",
    ),
    # Texts
    sabotage(
        "committed tokens are not decoded again",
        "engines/generating.py",
        "            if index >= (restored or 0):\n                checkpoints",
        "            if False:\n                checkpoints",
        "tests/engines/test_scripted.py::test_after_a_kill_at_any_token_the_text_goes_on_as_if_nothing_had_happened",
    ),
    sabotage(
        "a committed token is decoded twice behind a snapshot",
        "engines/generating.py",
        "            if index >= (restored or 0):\n                checkpoints",
        "            if index >= (restored or 0) - 1:\n                checkpoints",
        "tests/engines/test_scripted.py::test_after_a_kill_at_any_token_the_text_goes_on_as_if_nothing_had_happened",
    ),
    sabotage(
        "a stream ends before the terminal event",
        "transactions/read.py",
        "    complete = state.finished and last >= last_seq",
        "    complete = state.finished",
        "tests/transactions/test_read.py::test_a_log_is_read_in_pages_that_know_their_end",
    ),
    # Several instances
    sabotage(
        "a dead instance may renew",
        "store/sql/instances.sql",
        "WHERE id = :id AND state = 'alive';\n\n-- name: lock",
        "WHERE id = :id;\n\n-- name: lock",
        CONFLICTS,
    ),
    sabotage(
        "a model's row is not locked",
        "store/sql/models.sql",
        "WHERE name = :name\n$FOR_UPDATE;",
        "WHERE name = :name;",
        CONFLICTS,
    ),
    sabotage(
        "stored settings: version not looked at",
        "transactions/service.py",
        "if command.version not in {None, version}:",
        "if False:",
        CONFLICTS,
    ),
    sabotage(
        "append without a token",
        "transactions/append.py",
        "if fencing_token != command.fencing_token:",
        "if False:",
        CONFLICTS,
        "tests/differential/test_stores.py",
    ),
    sabotage(
        "a key stands for any body",
        "transactions/accept.py",
        "if request_digest != key.request_digest:",
        "if False:",
        CONFLICTS,
        "tests/differential/test_stores.py",
    ),
    sabotage(
        "cancel: version not looked at",
        "transactions/cancel.py",
        "if command.version is not None and command.version != task.version:",
        "if False:",
        "tests/differential/test_stores.py",
    ),
    sabotage(
        "prune takes the youngest first",
        "store/sql/tasks.sql",
        "ORDER BY finished_at_ms, id\nLIMIT :limit;\n\n-- name: expired_unstored",
        "ORDER BY finished_at_ms DESC, id\nLIMIT :limit;\n\n-- name: expired_unstored",
        "tests/differential/test_stores.py",
    ),
    sabotage(
        "an unknown commit is not driven again on a cut line",
        "limits.py",
        "COMMIT_TRIES_MAX = 3",
        "COMMIT_TRIES_MAX = 1",
        f"{LINES}::test_a_request_whose_commit_is_cut_is_accepted_once",
    ),
    sabotage(
        "an instance never fences itself",
        "core/lease.py",
        "return now_ms - confirmed_from_ms > lease.stop_after_ms",
        "return False",
        f"{LINES}::test_an_instance_without_its_store_stops_before_another_takes_over_and_can_change_nothing_afterwards",
    ),
    sabotage(
        "stored retention is not used",
        "runtime/housekeeping.py",
        'await self._settings.get("unstored_minutes")',
        "60",
        "tests/http/test_service.py",
    ),
    sabotage(
        "a lost COMMIT is taken for a success",
        "store/postgres_tx.py",
        "        except (StoreFull, CommitUnknown):\n            raise\n",
        "        except (StoreFull, CommitUnknown):\n            return\n",
        f"{POINTS}::test_a_process_whose_connections_are_ended_at_any_step_is_told_and_writes_the_very_same[accept.written]",
    ),
    Sabotage(
        "a table of unfinished tasks may be truncated",
        (
            Edit(PEOPLE, "BEFORE TRUNCATE ON tasks\n", "BEFORE DELETE ON pairings\n"),
            Edit(PEOPLE, "BEFORE TRUNCATE ON task_events\n", "BEFORE UPDATE ON pairings\n"),
        ),
        ("tests/postgres/test_schema.py::test_no_task_and_no_event_is_lost_by_a_truncate",),
    ),
    sabotage(
        "functions are not compared",
        "store/compare_postgres.py",
        "SELECT '', 'function ' || proname, concat_ws(' ', prosrc,",
        "SELECT '', 'function ' || proname, concat_ws(' ', '',",
        "tests/cli/test_store_postgres.py",
    ),
    sabotage(
        "settings show the password",
        "cli/settings.py",
        '    if name == "store":\n        return without_password(str(value))\n',
        "",
        "tests/cli/test_store_postgres.py",
    ),
    # For the people who use it
    sabotage(
        "a wrong code costs nothing",
        "transactions/pairings.py",
        '        tx.execute(COUNT_TRY, {"id": pairing_id})\n',
        "        pass\n",
        "tests/transactions/test_pairings.py",
    ),
    sabotage(
        "a used code is good again",
        "core/pairing.py",
        "            return Tried(pairing, (*expired, pairing.id), ())",
        "            return Tried(pairing, expired, ())",
        "tests/transactions/test_pairings.py",
    ),
    sabotage(
        "a revoked token still counts",
        "store/sql/clients.sql",
        "WHERE token_hash = :token_hash AND revoked_at_ms IS NULL",
        "WHERE token_hash = :token_hash",
        "tests/transactions/test_pairings.py",
        "tests/http/test_clients.py",
    ),
    sabotage(
        "a route asks for no scope",
        "http/guard.py",
        "    if scope not in client.scopes and ADMIN not in client.scopes:",
        "    if not client.scopes:",
        "tests/http/test_scopes.py",
    ),
    sabotage(
        "a task's end releases no webhook",
        "transactions/outbox.py",
        "    if tx.execute(RELEASE, params):\n",
        "    if not params:\n",
        "tests/transactions/test_outbox.py",
    ),
    sabotage(
        "the outcome of an old try is written",
        "store/sql/outbox.sql",
        "WHERE id = :id AND tries = :tries AND state = 'unconfirmed'",
        "WHERE id = :id AND state = 'unconfirmed'",
        "tests/transactions/test_outbox.py",
    ),
    sabotage(
        "a webhook goes to one private address among others",
        "runtime/webhook_client.py",
        "not all(map(is_global, addresses))",
        "not any(map(is_global, addresses))",
        "tests/runtime/test_webhooks.py",
        "tests/runtime/test_webhook_address.py",
    ),
    sabotage(
        "retention believes any clock",
        "core/clock_watch.py",
        "    if jump_ms > JUMP_MS:\n",
        "    if jump_ms > 10**15:\n",
        "tests/core/test_clock_watch.py",
    ),
    sabotage(
        "a snapshot is told before the tokens that it holds",
        "engines/generating.py",
        "                self._tell_held()  # or the snapshot would hold more than the log\n",
        "",
        "tests/engines/test_scripted.py::"
        "test_quick_tokens_are_told_together_but_the_first_at_once_and_all_before_a_snapshot_that_holds_them",
    ),
    sabotage(
        "a text is blamed for the crash of its neighbour",
        "transactions/recover.py",
        "    if not command.innocent:\n        count",
        "    if command:\n        count",
        "tests/runtime/test_instance.py::test_a_text_beside_one_that_kills_the_engine_goes_on_to_its_own_end",
    ),
    sabotage(
        "a keep-alive comment ends an event",
        "http/stream.py",
        'KEEP_ALIVE = b": keep-alive\\n"',
        'KEEP_ALIVE = b": keep-alive\\n\\n"',
        "tests/http/test_openai_client.py::test_the_comments_that_fill_a_silence_disturb_nobody",
    ),
    sabotage(
        "the page lets scripts in texts run",
        "dashboard/reply.py",
        "autoescape=True",
        "autoescape=False",
        "tests/dashboard/test_strangers.py",
    ),
)
