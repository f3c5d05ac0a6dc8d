"""A pytest plugin: a test that fails leaves its evidence, and its report ends with the command that replays it.

It also sees to it that hypothesis draws from the printed seed and keeps an example that fails.
"""

from __future__ import annotations

import inspect
import json
import shutil
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import pytest
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase, ReadOnlyDatabase

from tests.support import evidence
from tests.support.evidence import Case

BEFORE_TIMEOUT_S = 3.0
"""A test that hangs takes its process with it, so its evidence is written a moment before."""
EXAMPLES = evidence.ROOT / ".hypothesis" / "examples"
_timers = pytest.StashKey[threading.Timer]()
_too_early = pytest.StashKey[Path]()


def pytest_report_header() -> str:
    return f"RETOMA_TEST_SEED={evidence.SEED}"


def pytest_configure() -> None:
    hypothesis.settings.register_profile(
        "retoma", database=_examples(), derandomize=False, print_blob=True, deadline=None
    )
    hypothesis.settings.load_profile("retoma")


def _examples() -> ExampleDatabase:
    replayed = evidence.replayed_from()
    if replayed is None:
        return DirectoryBasedExampleDatabase(EXAMPLES)
    return ReadOnlyDatabase(DirectoryBasedExampleDatabase(replayed / "hypothesis"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives hypothesis its seed; a state machine is given it by `@seed(SEED)`.

    `--hypothesis-seed` and `seed` both switch off the folder of examples. It is what a replay needs: a seed alone draws
    other examples as soon as other modules are loaded, because their constants are drawn from too.
    """
    for item in items:
        function: Any = getattr(item, "obj", None)
        if getattr(function, "is_hypothesis_test", False) and not inspect.ismethod(function):
            hypothesis.seed(evidence.SEED)(function)
            before = function._hypothesis_internal_use_settings
            function._hypothesis_internal_use_settings = hypothesis.settings(before, database=_examples())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    evidence.begin(Case(item.nodeid, ["pytest", item.nodeid]))
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        evidence.keep("hypothesis", EXAMPLES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and report.when != "teardown":
        failed = _line_of(report, call)
        more = {"failure.txt": _whole(report), "notes.txt": _notes_of(call)}
        report.sections.append(("evidence", _told(failed, {name: text for name, text in more.items() if text})))
    elif _too_early in item.stash and report.when == "call":
        shutil.rmtree(item.stash[_too_early], ignore_errors=True)
    return report


def _told(failed: str, more: dict[str, str]) -> str:
    """Writes the evidence, or compares with what is being replayed; what the report says about it."""
    replayed = evidence.replayed_from()
    if replayed is not None:
        recorded = json.loads((replayed / evidence.RECORD).read_text())["failed"]
        return "it failed in the same way" if failed == recorded else f"it failed in another way; recorded: {recorded}"
    folder = evidence.write(failed, more)
    assert folder is not None
    return f"kept in {folder}\nagain: {evidence.replay_command(folder)}"


def _line_of(report: pytest.TestReport, call: pytest.CallInfo[Any]) -> str:
    text = call.excinfo.exconly(tryshort=True) if call.excinfo else report.longreprtext
    return next(iter(text.splitlines()), "")


def _whole(report: pytest.TestReport) -> str:
    captured = "".join(f"\n--- {title} ---\n{text}" for title, text in report.sections)
    return f"{report.longreprtext}\n{captured}"


def _notes_of(call: pytest.CallInfo[Any]) -> str:
    """What hypothesis says: the steps that fail, and the words that reproduce them."""
    notes = getattr(call.excinfo.value, "__notes__", []) if call.excinfo else []
    return "\n".join(map(str, notes))


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    def write() -> None:
        folder = evidence.write(f"not ended after {settings.timeout:g} s", {})
        if folder is not None:
            item.stash[_too_early] = folder
            sys.__stderr__ and sys.__stderr__.write(f"kept in {folder}\nagain: {evidence.replay_command(folder)}\n")

    timer = threading.Timer(max(settings.timeout - BEFORE_TIMEOUT_S, settings.timeout / 2), write)
    timer.daemon = True
    timer.start()
    item.stash[_timers] = timer


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    timer = item.stash.get(_timers, None)
    if timer is not None:
        timer.cancel()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """In the place of a test that is replayed from an image, looks at that image, if its module says how.

    It says so by a function `wrong_with`, which is given the image and a folder to make it in.
    """
    image = evidence.replayed_image()
    wrong_with = getattr(pyfuncitem.module, "wrong_with", None)
    if image is None or wrong_with is None:
        return None
    with TemporaryDirectory(prefix="retoma-replay-") as folder:
        found = wrong_with(image, Path(folder) / "image")
        assert found == []
    return True
