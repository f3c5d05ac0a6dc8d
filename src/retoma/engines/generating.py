"""One text in the engine's process: from the request's frame to `done`.

The order of one token is the heart of it: sample, tell the service, then perhaps take a snapshot, then decode. So a
snapshot never holds the newest token, and after a restore there is always at least one token to decode, which brings
back what `sample` needs. Committed tokens are decoded one at a time, as they were the first time: decoded in one
batch they would leave other bits behind (measured: no text of 24 stayed the same).

A quick engine tells several tokens at once. Each frame costs the service a commit and more than a millisecond of a
processor that the engine could use, and nobody reads faster than forty commits a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial

from retoma.engines.checkpoints import Checkpoints
from retoma.engines.contract import EngineSequence, Generation, Interrupted, LoadedModel
from retoma.engines.frames import Alive, Done, Frame, Generate, Output, Started
from retoma.engines.text import Group, TextAssembler
from retoma.engines.turn import mark_of
from retoma.failpoints import Failpoint, passing
from retoma.limits import PREFILL_CHUNK_TOKENS

ALIVE_EVERY_S = 0.4
_ACCEPTED_PER_STEP = 256


class Generating:
    """Drives one sequence, a bounded piece per step, so that several can take turns and a cancel is soon seen."""

    def __init__(
        self,
        model: LoadedModel,
        request: Generate,
        send: Callable[[Frame], None],
        snapshot_every: int,
        output_every_s: float,
    ) -> None:
        """`snapshot_every`: see Checkpoints. Tokens that come quicker than `output_every_s` are told together."""
        self.key = request.key
        self.mark = mark_of(request.key)
        self.used_s = 0.0
        """Working time so far; the worker gives the next turn to whoever had least."""
        self._model = model
        self._request = request
        self._send = send
        self._snapshot_every = snapshot_every
        self._output_every_s = output_every_s
        self._tokens = list(request.committed)
        self._assembler = TextAssembler(request.stop)
        self._sequence: EngineSequence | None = None
        self._heard_s = time.monotonic()
        self._held = Group([], "")
        self._told_s = 0.0
        self._sampling = self._parking = False
        self._steps = self._run()

    def step(self) -> bool:
        """Works until the next yield of `_run`; False: `done` is sent. Raises what the engine raises."""
        began_s = time.perf_counter()
        goes_on = next(self._steps, False)
        self.used_s += time.perf_counter() - began_s
        return goes_on

    def close(self) -> None:
        """Frees the place in the context."""
        self._steps.close()

    def park(self) -> bool:
        """From the next token on: write a snapshot and raise Interrupted. False: the prompt is not decoded yet."""
        self._parking = True
        return self._sampling

    def interrupt(self) -> None:
        """Called from another thread: makes the present step end early, with Interrupted."""
        if self._sequence is not None:
            self._sequence.interrupt()

    def _run(self) -> Generator[bool, None, None]:
        with closing(self._model.open(_generation(self._request))) as sequence:
            self._sequence = sequence
            checkpoints = Checkpoints(self._model, sequence, self._request, self._snapshot_every)
            reason = self._replay() or self._limit_reached(sequence)
            restored = None if reason else (yield from self._bring_back(sequence, checkpoints))
            self._tell(self._started(sequence, checkpoints, restored))
            self._sampling = True
            if self._request.committed:
                # The first token of a new text is told at once. Here it waits its turn, so that an engine which crashes
                # at the same token each time does not seem to get a little further each time.
                self._told_s = time.monotonic()
            while reason is None:
                yield True
                reason = self._next_token(sequence, checkpoints)
            self._tell(self._done(sequence, reason))

    def _replay(self) -> str | None:
        """Brings the assembler to where it was; the reason, if the committed tokens are the whole text already."""
        self._assembler.replay((token, self._model.piece(token)) for token in self._tokens)
        at_end = bool(self._tokens) and self._model.is_end(self._tokens[-1])
        return "stop" if at_end or self._assembler.stopped else None

    def _bring_back(self, sequence: EngineSequence, checkpoints: Checkpoints) -> Generator[bool, None, int | None]:
        """Decodes the prompt and the committed tokens, or what a snapshot lacks of them; returns what it held."""
        restored = checkpoints.restore()
        if restored is None:
            yield from self._prefill(sequence, checkpoints)
        passing(Failpoint.ENGINE_PREFILLED)
        for index, token in enumerate(self._tokens):
            sequence.accept(token)
            if index >= (restored or 0):
                checkpoints.timed(partial(sequence.decode, token))
            if index >= (restored or 0) or index % _ACCEPTED_PER_STEP == 0:
                self._stay_alive(sequence)
                yield True
        return restored

    def _prefill(self, sequence: EngineSequence, checkpoints: Checkpoints) -> Iterator[bool]:
        total, done, more = sequence.prompt_tokens, 0, True
        while more:
            more = checkpoints.timed(sequence.prefill)
            done = min(done + PREFILL_CHUNK_TOKENS, total)
            self._tell(Alive(self.key, done, total))
            yield True

    def _next_token(self, sequence: EngineSequence, checkpoints: Checkpoints) -> str | None:
        """Samples one token, tells it, and decodes it if another one is to follow; else returns the reason to end."""
        token = sequence.sample()
        sequence.accept(token)
        passing(Failpoint.ENGINE_TOKEN)
        self._tokens.append(token)
        group = self._assembler.push(token, b"" if self._model.is_end(token) else self._model.piece(token))
        if group is not None:
            self._hold(group)
        if self._model.is_end(token) or self._assembler.stopped:
            return "stop"
        reason = self._limit_reached(sequence)
        if reason is None:
            # Not inside a character: the log would lack tokens that the snapshot holds, and it could not be used.
            parking = self._parking and group is not None
            written = checkpoints.take(self._tokens, at_any_cost=parking)
            if written is not None:
                self._tell_held()  # or the snapshot would hold more than the log
                self._tell(written)
            if parking:
                self._tell_held()
                raise Interrupted
            checkpoints.timed(partial(sequence.decode, token))
            self._stay_alive(sequence)
        return reason

    def _limit_reached(self, sequence: EngineSequence) -> str | None:
        """The newest token must still fit into the context, or nothing can follow it."""
        count, most = len(self._tokens), self._request.max_output_tokens
        full = sequence.prompt_tokens + count > self._model.facts.context_tokens
        return "max_output_tokens" if full or (most is not None and count >= most) else None

    def _started(self, sequence: EngineSequence, checkpoints: Checkpoints, restored: int | None) -> Started:
        path = "snapshot" if restored is not None else "log" if self._request.committed else "prompt"
        known = self._request.fingerprint in {"", self._model.facts.fingerprint}
        exact = not self._request.committed or (known and not checkpoints.foreign)
        return Started(self.key, sequence.prompt_tokens, path, restored or 0, exact)

    def _done(self, sequence: EngineSequence, reason: str) -> Done:
        self._tell_held()
        rest = self._assembler.finish()
        return Done(self.key, reason, rest.tokens, rest.text, sequence.prompt_tokens, len(self._tokens))

    def _hold(self, group: Group) -> None:
        self._held = Group(self._held.tokens + group.tokens, self._held.text + group.text)
        if time.monotonic() - self._told_s >= self._output_every_s:
            self._tell_held()

    def _tell_held(self) -> None:
        if self._held.tokens:
            self._tell(Output(self.key, self._held.tokens, self._held.text))
            self._held = Group([], "")
            self._told_s = self._heard_s

    def _stay_alive(self, sequence: EngineSequence) -> None:
        if time.monotonic() - self._heard_s >= ALIVE_EVERY_S:
            self._tell(Alive(self.key, sequence.prompt_tokens, sequence.prompt_tokens))

    def _tell(self, frame: Frame) -> None:
        self._heard_s = time.monotonic()
        self._send(frame)


def _generation(request: Generate) -> Generation:
    return Generation(
        messages=request.messages,
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stop=tuple(request.stop),
        truncation=request.truncation,
        format=request.format,
    )
