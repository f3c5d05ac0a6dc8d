"""A store with a clock, names and short words for what happens to a task. Every word is one transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from retoma.core.events import EventDraft, encode_json
from retoma.core.output import Output
from retoma.core.response import Ending, Usage
from retoma.core.task import OnRestart, State
from retoma.core.webhook import Answer, decide_verdict, message_id
from retoma.store.contract import Store
from retoma.store.rows import MessageRow, TaskRow
from retoma.transactions import check, log, outbox, read
from retoma.transactions.accept import Accept, Accepted, IdempotencyKey, accept
from retoma.transactions.append import Append, append
from retoma.transactions.cancel import Cancel, cancel
from retoma.transactions.claim import Claim, claim
from retoma.transactions.delete import Delete, delete
from retoma.transactions.finish import Finish, finish
from retoma.transactions.instances import read_left_behind
from retoma.transactions.recover import AfterCrash, Recover, recover, recover_after_crash
from retoma.transactions.snapshots import RegisterSnapshot, register_snapshot
from retoma.transactions.start import Start, start
from tests.support.clock import ManualClock, SequentialIds
from tests.support.pruning import Prune, prune

T = TypeVar("T")
REQUEST = {"echo": {"model": "m", "background": True}, "input": "Once upon a time"}
DAY_MS = 24 * 3600 * 1000


def key_of(name: str, body: str = "body", expires_at_ms: int = 1_700_000_000_000 + DAY_MS) -> IdempotencyKey:
    return IdempotencyKey(sha256(name.encode()).digest()[:16], sha256(body.encode()).digest(), expires_at_ms)


@dataclass
class World:
    """`me` is the instance in whose name everything is done that has an owner."""

    store: Store
    clock: ManualClock = field(default_factory=ManualClock)
    ids: SequentialIds = field(default_factory=SequentialIds)
    me: str = "instance-1"

    def does(self, transaction: Callable[..., T], command: Any) -> T:
        return self.store.transact(partial(transaction, command=command))

    # Commands, for tests that drive one twice or change a field of it.

    def accept_command(self, policy: OnRestart = OnRestart.RESUME, **changes: Any) -> Accept:
        fields: dict[str, Any] = {
            "task_id": self.ids.new("resp"),
            "client_id": "cli_1",
            "model": "m",
            "background": True,
            "stored": True,
            "on_restart": policy,
            "request": encode_json(REQUEST),
            "instance_id": self.me,
            "now_ms": self.clock.wall_ms(),
            "op_id": self.ids.op_id(),
        }
        return Accept(**(fields | changes))

    def claim_command(self) -> Claim:
        return Claim(self.me, self.clock.wall_ms(), self.ids.op_id())

    def start_command(self, task: TaskRow, path: str = "prompt") -> Start:
        return Start(
            task_id=task.id,
            fencing_token=task.fencing_token,
            path=path,
            exact=True,
            fingerprint="print",
            now_ms=self.clock.wall_ms(),
            op_id=self.ids.op_id(),
        )

    def append_command(self, task: TaskRow, text: str = "word ", tokens: tuple[int, ...] = (7,)) -> Append:
        """The next piece of the task's text, whatever the log holds by now."""
        folded = self.folded(task.id)
        drafts = folded.output.append(text, tokens, self.ids.new("msg"))
        return self.append_drafts(task, folded.last_seq, drafts)

    def append_drafts(self, task: TaskRow, after_seq: int, drafts: list[EventDraft]) -> Append:
        return Append(task.id, task.fencing_token, after_seq, drafts, self.clock.wall_ms(), self.ids.op_id())

    def finish_command(self, task: TaskRow, status: str = "completed", **changes: Any) -> Finish:
        output = self.folded(task.id).output
        before = output.close(status, [], self.ids.new("msg")) if status in {"completed", "incomplete"} else []
        code = "engine_crashed" if status == "failed" else None
        ending = Ending(status, output.items("completed" if status == "completed" else "incomplete"), code=code)
        if status in {"completed", "incomplete"}:
            reason = "max_output_tokens" if status == "incomplete" else None
            ending = Ending(status, output.items(status), Usage(4, len(output.tokens)), reason)
        command = Finish(task.id, task.fencing_token, ending, self.clock.wall_ms(), self.ids.op_id(), before)
        return Finish(**({name: getattr(command, name) for name in command.__dataclass_fields__} | changes))

    def cancel_command(self, task_id: str, **changes: Any) -> Cancel:
        fields = {"client_id": "", "now_ms": self.clock.wall_ms(), "op_id": self.ids.op_id()}
        return Cancel(task_id, **(fields | changes))

    def recover_command(self, task: TaskRow, **changes: Any) -> Recover:
        """`me` takes the task from the instance that holds it."""
        return Recover(task.id, task.instance_id, self.me, self.clock.wall_ms(), self.ids.op_id(), **changes)

    def crash_command(self, task: TaskRow) -> AfterCrash:
        return AfterCrash(
            task.id,
            task.fencing_token,
            self.me,
            "engine_crashed",
            "the engine died",
            self.clock.wall_ms(),
            self.ids.op_id(),
        )

    def snapshot_command(self, task: TaskRow, tokens: int) -> RegisterSnapshot:
        path = f"{task.id}/{task.fencing_token}-{tokens}.snap"
        return RegisterSnapshot(task.id, task.fencing_token, tokens, path, 100, "print", self.clock.wall_ms())

    # The same, done.

    def accept(self, policy: OnRestart = OnRestart.RESUME, **changes: Any) -> TaskRow:
        accepted: Accepted = self.does(accept, self.accept_command(policy, **changes))
        return self.task(accepted.task_id)

    def claim(self) -> TaskRow | None:
        return self.does(claim, self.claim_command())

    def start(self, task: TaskRow, path: str = "prompt") -> TaskRow:
        return self.does(start, self.start_command(task, path))

    def append(self, task: TaskRow, text: str = "word ", tokens: tuple[int, ...] = (7,)) -> int:
        return self.does(append, self.append_command(task, text, tokens))

    def finish(self, task: TaskRow, status: str = "completed", **changes: Any) -> TaskRow:
        return self.does(finish, self.finish_command(task, status, **changes))

    def cancel(self, task_id: str, **changes: Any) -> TaskRow:
        return self.does(cancel, self.cancel_command(task_id, **changes))

    def recover(self, task: TaskRow, **changes: Any) -> TaskRow | None:
        return self.does(recover, self.recover_command(task, **changes))

    def crash(self, task: TaskRow) -> TaskRow:
        return self.does(recover_after_crash, self.crash_command(task))

    def snapshot(self, task: TaskRow, tokens: int) -> list[str]:
        return self.does(register_snapshot, self.snapshot_command(task, tokens))

    def delete(self, task_id: str, **changes: Any) -> None:
        self.does(delete, Delete(task_id, **({"client_id": ""} | changes)))

    def prune(self, retention: str = "stored", before_ms: int | None = None, limit: int = 100) -> list[str]:
        now_ms = self.clock.wall_ms()
        return self.does(prune, Prune(retention, now_ms if before_ms is None else before_ms, now_ms, limit))

    def in_state(self, state: State, policy: OnRestart = OnRestart.RESUME, **changes: Any) -> TaskRow:
        """A new task, led to this state; nothing else may be waiting in the queue."""
        task = self.accept(policy, **changes)
        if state is State.QUEUED:
            return task
        if state is State.CANCELLED:
            return self.cancel(task.id)
        claimed = self.claim()
        assert claimed is not None
        assert claimed.id == task.id
        if state is State.LOADING:
            return claimed
        running = self.start(claimed)
        if state is not State.RUNNING:
            self.append(running)
        match state:
            case State.CANCELLING:
                return self.cancel(task.id)
            case State.COMPLETED:
                return self.finish(running)
            case State.FAILED:
                return self.finish(running, "failed")
            case _:
                return running

    def running(self, policy: OnRestart = OnRestart.RESUME) -> TaskRow:
        return self.in_state(State.RUNNING, policy)

    # What is there.

    def task(self, task_id: str) -> TaskRow:
        return self.store.read(partial(read.read_task, task_id=task_id))

    def unfinished_of(self, instance_id: str) -> list[TaskRow]:
        left = self.store.read(partial(read_left_behind, instance_id=instance_id, limit=1_000))
        return [self.task(task_id) for task_id in left]

    def folded(self, task_id: str) -> Any:
        return self.store.read(partial(log.fold_log, task_id=task_id))

    def output(self, task_id: str) -> Output:
        return self.folded(task_id).output

    def log(self, task_id: str) -> list[tuple[int, str, str]]:
        return self.store.read(partial(read.read_log, task_id=task_id, after=-1, limit=10_000)).events

    def types(self, task_id: str) -> list[str]:
        return [event_type.removeprefix("response.") for _, event_type, _ in self.log(task_id)]

    def response(self, task_id: str) -> dict[str, Any]:
        return self.store.read(partial(read.read_response, task_id=task_id)).body

    # Webhooks.

    def message(self, task_id: str) -> MessageRow:
        """The task's message, also when the task is gone."""
        listed = self.store.read(partial(outbox.read_messages, state="", client_id="", before="", limit=1_000))
        return next(row for row in listed if row.task_id == task_id)

    def left_waiting(self, url: str, state: State = State.COMPLETED) -> str:
        """A finished task as a release leaves it that knows no outbox: its message still waits."""
        task = self.in_state(state)
        row = {"id": message_id(task.id), "task_id": task.id, "client_id": task.client_id, "url": url, "now_ms": 0}
        self.store.transact(lambda tx: tx.execute(outbox.INSERT, row))
        return task.id

    def claim_tries(self, *task_ids: str, again_ms: int = 20_000) -> list[outbox.Try]:
        """Counts a try of the messages of these tasks that are due."""
        now_ms = self.clock.wall_ms()
        ids = [message_id(task_id) for task_id in task_ids]
        return self.does(outbox.claim_tries, outbox.ClaimTries(ids, now_ms, now_ms + again_ms))

    def answer(self, tried: outbox.Try, answer: Answer) -> bool:
        """Writes what came of a try; False if a later one was there."""
        now_ms = self.clock.wall_ms()
        verdict = decide_verdict(tried.body, tried.number, answer, now_ms)
        return self.does(outbox.write_outcome, outbox.Outcome(tried.message_id, tried.number, verdict, now_ms))

    def problems(self) -> list[check.Finding]:
        return self.store.read(check.check)
