"""`make soak MINUTES=30`: two services on one data directory, clients that do what clients do, and a monkey.

The monkey kills, pauses past the lease and restarts the services, by a printed seed. The clients write down all that
they were ever told. In the end every task must have ended, every acknowledged id exist, no key have made two tasks,
every event be the same byte for byte, texts of the same prompt be equal, and `retoma store check` find nothing. A run
that fails leaves its evidence (its data directory, the logs, what the monkey did and when) and prints the command that
does the same again; the machine's own timing is not part of a seed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import fields
from pathlib import Path
from random import Random  # noqa: TID251 - the seed is printed, and nothing here is shipped
from signal import SIGCONT, SIGSTOP
from threading import Event, Thread

import httpx

from tests.support import evidence
from tests.support.evidence import Case
from tests.support.service import RunningService, environment, start_service
from tools.soak_clients import Client, Ledger, Services

LEASE_S = 3
SETTINGS = {
    "RETOMA_LEASE_S": str(LEASE_S),
    "RETOMA_SCRIPTED_TOKEN_MS": "6",
    "RETOMA_SCRIPTED_TOKENS": "96",
    "RETOMA_SNAPSHOT_EVERY_TOKENS": "16",
    "RETOMA_WORKERS": "3",
}
CLIENTS = 4
SERVICES = 2
PAUSE_S = LEASE_S + 2.0
END_S = 90.0
SOMETIMES = ("kills", "pauses", "restarts", "recovered", "resumed", "cancelled", "replayed", "streamed", "deleted")
"""What must have happened at least once, or the run has shown nothing."""


class Soak:
    """One run on one data directory."""

    def __init__(self, data_dir: Path, seed: int, seconds: float, tell: Callable[[str], None]) -> None:
        self.data_dir = data_dir
        self.ledger = Ledger()
        self._rng = _drawing(seed, "monkey")
        self._seed = seed
        self._began = time.monotonic()
        self._until = self._began + seconds
        self._tell = tell
        self.moments: list[str] = []
        """What the monkey did, and how many seconds after the beginning."""
        self._over = Event()
        self._stack = ExitStack()
        self._services = Services()

    def run(self) -> None:
        """To the end; what was wrong is in the ledger."""
        with self._stack:
            for _ in range(SERVICES):
                self._services.places.append(self._start())
            clients = [
                Client(self._services, self.ledger, _drawing(self._seed, f"client {number}"), self._over, f"c{number}")
                for number in range(CLIENTS)
            ]
            threads = [Thread(target=client.run, name=client.name) for client in clients]
            for thread in threads:
                thread.start()
            try:
                self._monkey()
            finally:
                self._over.set()
                for thread in threads:
                    thread.join()
            self._settle()
            for service in self._services.places:
                if service.stop() != 0:
                    self.ledger.wrong(f"a service ended badly:\n{service.log[-2_000:]}")
        self._check_store()
        for name in SOMETIMES:
            if not self.ledger.counts[name]:
                self.ledger.wrong(f"it never happened: {name}")

    def _start(self) -> RunningService:
        return self._stack.enter_context(start_service(self.data_dir, env=SETTINGS))

    # The monkey

    def _note(self, what: str) -> None:
        self._tell(what)
        self.moments.append(f"{time.monotonic() - self._began:8.3f} {what}")

    def _monkey(self) -> None:
        """Each of its tricks once, then whatever the seed says."""
        tricks = [self._kill, self._pause, self._kill, self._restart]
        while (left := self._until - time.monotonic()) > 0:
            trick = tricks.pop(0) if tricks else self._rng.choice([self._kill, self._kill, self._restart, self._pause])
            self._over.wait(min(left, 0.5 + 1.5 * self._rng.random()))
            if trick == self._pause and left < PAUSE_S:
                trick = self._kill
            trick(self._rng.randrange(SERVICES))

    def _kill(self, place: int) -> None:
        engines_too = self._rng.random() < 0.5  # noqa: PLR2004 - every other time
        self._note(f"kill -9 of service {place}{' and its engines' if engines_too else ''}")
        self._services.places[place].kill(engines_too=engines_too)
        self.ledger.count("kills")
        self._replace(place)

    def _pause(self, place: int) -> None:
        self._note(f"service {place} stands still for {PAUSE_S:g} s")
        process = self._services.places[place].process
        process.send_signal(SIGSTOP)
        self._over.wait(PAUSE_S)
        process.send_signal(SIGCONT)
        self.ledger.count("pauses")

    def _restart(self, place: int) -> None:
        self._note(f"service {place} is stopped in good order and started again")
        if self._services.places[place].stop() != 0:
            self.ledger.wrong(f"a service ended badly:\n{self._services.places[place].log[-2_000:]}")
        self.ledger.count("restarts")
        self._replace(place)

    def _replace(self, place: int) -> None:
        self._services.places[place] = self._start()

    # The end

    def _settle(self) -> None:
        """Waits for the end of every task, then asks for everything once more."""
        with httpx.Client(timeout=60) as http:
            until = time.monotonic() + END_S
            while unfinished := self._unfinished(http):
                if time.monotonic() > until:
                    self.ledger.wrong(f"not ended within {END_S:g} s of the last fault: {unfinished}")
                    return
                Event().wait(0.2)
            self.ledger.verify(http, self._services)

    def _unfinished(self, http: httpx.Client) -> list[str]:
        found: list[str] = []
        for state in ("queued", "loading", "running", "cancelling"):
            with suppress(httpx.HTTPError):
                reply = self._services.get(http, 0, "/v1/tasks", state=state, limit="100")
                found += [f"{task['id']} ({state})" for task in reply.json()["data"]]
        return found

    def _check_store(self) -> None:
        command = [sys.executable, "-P", "-m", "retoma", "store", "check", "--data-dir", str(self.data_dir)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            self.ledger.wrong(f"retoma store check: {done.stdout}{done.stderr}")


def _drawing(seed: int, who: str) -> Random:
    """Everybody draws from a stream of their own, so that one more draw here changes nothing there."""
    return Random(f"{seed} {who}")  # noqa: S311 - chooses tricks, not secrets


def soak(data_dir: Path, seed: int, seconds: float, tell: Callable[[str], None] = print) -> Ledger:
    """Runs once; the ledger says what happened and what was wrong."""
    one = Soak(data_dir, seed, seconds, tell)
    evidence.keep("monkey.txt", lambda: "\n".join(one.moments))
    evidence.keep("ledger.json", lambda: _plain(one.ledger))
    one.run()
    return one.ledger


def _plain(ledger: Ledger) -> dict[str, object]:
    """A ledger as JSON can say it."""
    told: dict[str, object] = {one.name: getattr(ledger, one.name) for one in fields(ledger) if one.name != "lock"}
    return told | {"doomed": sorted(ledger.doomed), "deleted": sorted(ledger.deleted)}


def report(ledger: Ledger) -> str:
    """How often what has happened."""
    counts: Counter[str] = ledger.counts
    return json.dumps(dict(sorted(counts.items())))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, help="in the place of --minutes")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)  # noqa: TID251 - any number will do
    options = parser.parse_args()
    seconds: float = options.seconds or options.minutes * 60
    print(f"seed {options.seed}, {seconds:g} s")
    evidence.begin(Case("soak", ["tools.soak", "--seed", str(options.seed), "--seconds", f"{seconds:g}"], options.seed))
    folder = Path(tempfile.mkdtemp(prefix="retoma-soak-"))
    ledger = soak(folder / "data", options.seed, seconds)
    print(report(ledger))
    if ledger.problems:
        print("\n".join(ledger.problems), file=sys.stderr)
        raise SystemExit(_keep(ledger, folder))
    shutil.rmtree(folder)


def _keep(ledger: Ledger, folder: Path) -> int:
    """Writes the evidence of a run that failed, unless it is a replay; the exit status."""
    kept = evidence.write(ledger.problems[0].partition("\n")[0], {"problems.txt": "\n".join(ledger.problems)})
    if kept is None:
        print(f"the data is in {folder}", file=sys.stderr)
        return 1
    print(f"kept in {kept}\nagain: {evidence.replay_command(kept)}", file=sys.stderr)
    if evidence.left_out(kept):
        print(f"it was too much to be kept whole; all of it is in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return 1


if __name__ == "__main__":
    main()
