"""What a failing test leaves behind: a folder from which its failure can be looked at and done again.

    evidence.keep("kills.json", kills)  before the assertion; written only if the test fails
    evidence.keep_image(image)          files that a crash left behind and that are wrong; a replay looks at them again

What is kept is looked at when the test has failed and before its fixtures end: a list that has grown meanwhile is
written as it is by then, a folder as it lies there. So keeping costs nothing in a test that passes, and leaves nothing
behind. `make replay FROM=evidence/…` does the same again; `tests.support.evidence_plugin` tells pytest of all this.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw

from retoma.settings import without_password

ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("RETOMA_TEST_SEED", "20261130"))
PLACE = "RETOMA_TEST_EVIDENCE"
REPLAY = "RETOMA_TEST_REPLAY"
POSTGRES = "RETOMA_TEST_POSTGRES"
RECORD = "replay.json"
IMAGE = "image"

TEXT_BYTES_MAX = 1_000_000
"""Of a longer text the end is kept: that is where it went wrong."""
CASE_BYTES_MAX = 64_000_000
LOGS_MAX = 40
"""Of more processes in one test, the latest."""
_NAME_MAX = 100
# SQLite's shared index means nothing to another process, and a token is nobody's business.
_NOT_KEPT = ("-shm", ".token")

Files = Mapping[str, bytes] | Path
Kept = Any
"""A path, bytes, a text, files by their names, anything that JSON can say, or a function that returns one of these."""


@dataclass(frozen=True, slots=True)
class Image:
    """Files that a crash left behind, and what must be found in them."""

    where: str
    files: Files
    facts: Mapping[str, Any]

    def put_into(self, folder: Path) -> Path:
        """Makes this folder of it, in the place of what is there."""
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(self.files, Path):
            shutil.copytree(self.files, folder, ignore=shutil.ignore_patterns("*-shm"))
            return folder
        for name, data in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder


@dataclass
class Case:
    """What can be failing: a test by its node id, or a command."""

    name: str
    command: Sequence[str]
    """Behind `python -m`, what does the same again."""
    seed: int = SEED
    kept: dict[str, Kept] = field(default_factory=dict[str, Kept])
    logs: dict[str, str] = field(default_factory=dict[str, str])


_case: Case | None = None
_living: dict[str, Callable[[], str]] = {}
_versions: dict[str, Callable[[], str]] = {
    "python": platform.python_version,
    "sqlite": apsw.sqlite_lib_version,
    "system": platform.platform,
}


def begin(case: Case) -> None:
    """From now on what is kept belongs to this."""
    global _case  # noqa: PLW0603 - a process does one test at a time
    _case = case


def keep(name: str, data: Kept) -> None:
    """Hands over what must not be lost if this fails; under the same name, in the place of what was kept before."""
    if _case is not None:
        _case.kept[name] = data


def keep_image(image: Image) -> None:
    """Hands over what a crash left behind and what is known to be wrong; a replay looks at it again."""
    keep(IMAGE, image.files)
    keep(f"{IMAGE}.json", {"where": image.where, "facts": image.facts})


def note_version(name: str, ask: Callable[[], str]) -> None:
    """What a failure may depend on; asked only when one is written down."""
    _versions[name] = ask


def process_began(name: str, log: Callable[[], str]) -> None:
    """A process is running, whose log belongs to whatever fails from now on until it ends."""
    _living[name] = log


def process_ended(name: str) -> None:
    """Its log is about to go, and belongs to what is going on now."""
    log = _living.pop(name, None)
    if log is not None and _case is not None:
        with suppress(OSError):
            _case.logs[name] = log()[-TEXT_BYTES_MAX:]
        while len(_case.logs) > LOGS_MAX:
            del _case.logs[next(iter(_case.logs))]


# Writing


def place() -> Path:
    """The folder of all evidence."""
    return Path(os.environ.get(PLACE) or ROOT / "evidence").resolve()


def folder_of(name: str, seed: int) -> Path:
    """Where the evidence of a failure goes; the next failure of the same test by the same seed takes its place."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", re.sub(r"^.*/|\.py\b", "", name)).strip("-")[:_NAME_MAX]
    return place() / f"{words}-{sha256(name.encode()).hexdigest()[:6]}-{seed}"


def replayed_from() -> Path | None:
    """The evidence that is being replayed."""
    found = os.environ.get(REPLAY)
    return Path(found) if found else None


def replayed_image() -> Image | None:
    """The image of the evidence that is being replayed, if it has one."""
    folder = replayed_from()
    if folder is None or not (folder / IMAGE).is_dir():
        return None
    said = json.loads((folder / f"{IMAGE}.json").read_text())
    return Image(said["where"], folder / IMAGE, said["facts"])


def write(failed: str, more: Mapping[str, Kept]) -> Path | None:
    """Writes down the present case, which has failed; None when it is itself a replay: its evidence is there."""
    if _case is None or replayed_from() is not None:
        return None
    folder = folder_of(_case.name, _case.seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    writing = _Writing(folder)
    running = {name: log for name, log in _living.items() if name not in _case.logs}
    for name, data in {**more, **_case.logs, **running, **_case.kept}.items():
        writing.put(name, data)
    record = {
        "what": _case.name,
        "command": list(_case.command),
        "seed": _case.seed,
        "failed": failed,
        "switches": _switches(),
        "versions": {name: _asked(ask) for name, ask in _versions.items()},
        "commit": _commit(),
        "left_out": writing.left_out,
    }
    (folder / RECORD).write_text(f"{json.dumps(record, indent=2, ensure_ascii=False)}\n")
    return folder


def left_out(folder: Path) -> list[str]:
    """What was too much to be kept there."""
    return json.loads((folder / RECORD).read_text())["left_out"]


def replay_command(folder: Path) -> str:
    """What does the same again, to be typed at the root of the checkout."""
    return f"make replay FROM={folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder}"


class _Writing:
    """Writes into a folder, up to a bound."""

    def __init__(self, folder: Path) -> None:
        self.left_out: list[str] = []
        self._folder = folder
        self._left = CASE_BYTES_MAX

    def put(self, name: str, data: Kept) -> None:
        """Never raises: the failure that is written down counts for more than what can't be written."""
        try:
            self._put(name, data() if callable(data) else data)
        except Exception as error:  # noqa: BLE001 - see above
            self.left_out.append(f"{name}: {error!r}")

    def _put(self, name: str, data: Kept) -> None:
        match data:
            case Path():
                for path in [data] if data.is_file() else sorted(data.rglob("*")):
                    if path.is_file() and not path.name.endswith(_NOT_KEPT):
                        self._file(name if path == data else f"{name}/{path.relative_to(data)}", path.read_bytes())
            case bytes() | bytearray():
                self._file(name, bytes(data))
            case str():
                self._file(name, data.encode(errors="replace")[-TEXT_BYTES_MAX:])
            case dict() if data and all(isinstance(one, bytes) for one in data.values()):
                for part, content in data.items():
                    self._file(f"{name}/{part}", content)
            case _:
                self._file(name, f"{json.dumps(data, indent=1, default=str, ensure_ascii=False)}\n".encode())

    def _file(self, name: str, data: bytes) -> None:
        if len(data) > self._left:
            self.left_out.append(f"{name}: {len(data)} bytes")
            return
        self._left -= len(data)
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _switches() -> dict[str, str]:
    """What the environment says to Retoma and to its tests; URLs without their passwords."""
    found = {name: value for name, value in sorted(os.environ.items()) if name.startswith("RETOMA_")}
    return {name: without_password(value) for name, value in found.items() if name not in {PLACE, REPLAY}}


def _asked(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - a server may be down by now
        return f"unknown: {error!r}"


def _commit() -> str:
    """The commit that was checked out, with a mark when files differ from it."""
    try:
        asked = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
