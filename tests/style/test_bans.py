"""House rules that ruff can't see, each with a sample that shows that the check would find it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.style import bans
from tools.tree import ROOT, project_files

Ban = Callable[[str], Iterable[int]]


def _under(folder: str, suffix: str) -> list[Path]:
    return [path for path in project_files() if path.is_relative_to(ROOT / folder) and path.suffix == suffix]


def _texts() -> list[Path]:
    return [path for path in project_files() if b"\0" not in path.read_bytes()[:8192]]


def _source() -> list[Path]:
    return _under("src", ".py")


def _python() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py"]


BANS: list[tuple[Ban, Callable[[], list[Path]]]] = [
    (bans.select_star_in_sql, lambda: _under("src", ".sql")),
    (bans.select_star_in_python, _source),
    (bans.sql_in_f_strings, _source),
    (bans.type_ignores, _python),
    (bans.skips_without_reason, lambda: _under("tests", ".py")),
    (bans.machine_paths, _texts),
    (bans.registry_hosts, _texts),
]


@pytest.mark.parametrize(("ban", "files"), BANS, ids=[ban.__name__ for ban, _ in BANS])
def test_nothing_banned_is_in_the_tree(ban: Ban, files: Callable[[], list[Path]]) -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path in files() for line in ban(path.read_text("utf-8"))]
    assert found == []


# Samples are put together so that this file passes its own checks.
STAR = "SELECT " + "*"
SAMPLES: list[tuple[Ban, str]] = [
    (bans.select_star_in_sql, f"-- name: all\n{STAR}\n"),
    (bans.select_star_in_sql, STAR.replace("*", "t.*")),
    (bans.select_star_in_python, f"QUERY = '{STAR}'"),
    (bans.sql_in_f_strings, "Q = f'DELETE FROM tasks WHERE id = {task}'"),
    (bans.sql_in_f_strings, "Q = f'UPDATE tasks SET state = {state}'"),
    (bans.type_ignores, "x = 1  # type:" + " ignore[arg-type]"),
    (bans.skips_without_reason, "@pytest.mark.skip\ndef test_x(): ..."),
    (bans.skips_without_reason, "@pytest.mark.skip()\ndef test_x(): ..."),
    (bans.skips_without_reason, "@pytest.mark.skipif(WINDOWS)\ndef test_x(): ..."),
    (bans.skips_without_reason, "@pytest.mark.xfail(strict=True)\ndef test_x(): ..."),
    (bans.skips_without_reason, "def test_x():\n    pytest.skip('')"),
    (bans.machine_paths, "see /" + "work/shared/style.md"),
    (bans.machine_paths, "DATA = '/" + "home/ada/retoma'"),
    (bans.registry_hosts, "--index-url https://" + "pypi." + "org/simple"),
]
FINE: list[tuple[Ban, str]] = [
    (bans.select_star_in_sql, "SELECT COUNT(*) FROM tasks"),
    (bans.sql_in_f_strings, "MESSAGE = f'{count} tasks to select'"),
    (bans.type_ignores, "x = 1  # pyright: ignore[reportAny]"),
    (bans.skips_without_reason, "@pytest.mark.skipif(WINDOWS, reason='no signals')\ndef test_x(): ..."),
    (bans.skips_without_reason, "def test_x():\n    pytest.skip('no avx2')"),
    (bans.machine_paths, "import tests/framework/working and https://example.com/work/x"),
]


@pytest.mark.parametrize(("ban", "sample"), SAMPLES)
def test_a_ban_finds_what_it_bans(ban: Ban, sample: str) -> None:
    assert list(ban(sample))


@pytest.mark.parametrize(("ban", "sample"), FINE)
def test_a_ban_lets_the_rest_pass(ban: Ban, sample: str) -> None:
    assert not list(ban(sample))
