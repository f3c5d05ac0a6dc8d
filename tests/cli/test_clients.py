"""`retoma clients`: a code and where to take it, who has come in by one, and how to put somebody out again."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import segno

from retoma.cli.qr import qr_lines
from retoma.clock import SystemClock
from retoma.core.pairing import ALPHABET
from retoma.core.scopes import DEFAULT_SCOPES
from retoma.limits import PAIRINGS_OPEN_MAX
from retoma.store.sqlite import SqliteStore
from retoma.transactions.pairings import OpenPairing, open_pairing
from tests.support.command import Ended, run_retoma
from tests.support.service import RunningService, environment, start_service

URL = "http://192.168.1.20:8642"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def pair(data_dir: Path, *args: str, env: dict[str, str] | None = None) -> Ended:
    return run_retoma("clients", "pair", "--data-dir", data_dir, *args, env=env)


def pair_json(data_dir: Path, *args: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    ended = pair(data_dir, "--json", *args, env=env)
    assert ended.status == 0, ended
    return json.loads(ended.out)


def listed(data_dir: Path, *args: str) -> list[dict[str, Any]]:
    return json.loads(run_retoma("clients", "list", "--json", "--data-dir", data_dir, *args).out)


def exchange(service: RunningService, code: str, **more: str) -> httpx.Response:
    return httpx.post(f"{service.url}/v1/pairings", json={"code": code, **more}, timeout=30)


def test_a_client_is_paired_listed_and_revoked_beside_a_running_service(service: RunningService) -> None:
    at = service.data_dir
    printed = pair_json(at, "--name", "desk", "--scopes", "models:read, tasks:read")
    assert printed.keys() == {"code", "expires_at", "url"}
    made = exchange(service, printed["code"]).json()
    assert made["client"] == {"id": made["client"]["id"], "name": "desk", "scopes": ["models:read", "tasks:read"]}
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert httpx.get(f"{service.url}/v1/models", headers=headers, timeout=30).status_code == 200
    (client,) = [one for one in listed(at) if one["id"] == made["client"]["id"]]
    assert client.keys() == {"id", "name", "scopes", "created_at", "last_used_at", "revoked_at"}
    assert (client["name"], client["scopes"], client["revoked_at"]) == ("desk", ["models:read", "tasks:read"], None)
    table = run_retoma("clients", "list", "--data-dir", at).out
    assert f"desk  {client['id']}" in table
    for _ in range(2):
        assert run_retoma("clients", "revoke", client["id"], "--data-dir", at).status == 0
    assert httpx.get(f"{service.url}/v1/models", headers=headers, timeout=30).status_code == 401
    assert client["id"] not in [one["id"] for one in listed(at)]
    (revoked,) = [one for one in listed(at, "--all") if one["id"] == client["id"]]
    assert isinstance(revoked["revoked_at"], int)
    assert "REVOKED" in run_retoma("clients", "list", "--all", "--data-dir", at).out


def test_a_code_made_while_nothing_runs_is_good_at_the_next_start(tmp_path: Path) -> None:
    printed = pair_json(tmp_path / "data")
    with start_service(tmp_path / "data") as service:
        made = exchange(service, printed["code"], name="phone").json()
        assert made["client"]["scopes"] == sorted(DEFAULT_SCOPES)
        assert exchange(service, printed["code"]).status_code == 401


def test_the_code_is_bare_in_json_and_grouped_for_people(tmp_path: Path) -> None:
    printed = pair_json(tmp_path, "--url", f"{URL}/")
    assert len(printed["code"]) == 8
    assert set(printed["code"]) <= set(ALPHABET)
    assert printed["url"] == f"{URL}/#pair={printed['code']}"
    assert isinstance(printed["expires_at"], int)
    shown = pair(tmp_path, "--url", URL)
    assert shown.status == 0
    grouped = re.search(rf"^Code  ([{ALPHABET}]{{4}})-([{ALPHABET}]{{4}})$", shown.out, re.MULTILINE)
    assert grouped is not None
    assert f"{URL}/#pair={grouped[1]}{grouped[2]}\n" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize(
    ("args", "env", "url"),
    [
        ([], {}, "http://127.0.0.1:8642"),
        ([], {"RETOMA_HOST": "192.168.1.20", "RETOMA_PORT": "7000"}, "http://192.168.1.20:7000"),
        ([], {"RETOMA_HOST": "::1"}, "http://[::1]:8642"),
        ([], {"RETOMA_HOST": "0.0.0.0"}, "http://127.0.0.1:8642"),  # noqa: S104 - not bound, only named
        ([], {"RETOMA_URL": "https://nas.example/retoma/"}, "https://nas.example/retoma"),
        (["--url", URL], {"RETOMA_URL": "https://nas.example"}, URL),
        (["--url", f"{URL}/?x=1#y"], {"RETOMA_PORT": "0"}, URL),
    ],
)
def test_where_the_client_finds_the_service(args: list[str], env: dict[str, str], url: str, tmp_path: Path) -> None:
    printed = pair_json(tmp_path, *args, env=env)
    assert printed["url"] == f"{url}/#pair={printed['code']}"


def test_an_address_that_leads_to_this_machine_only_is_told(tmp_path: Path) -> None:
    assert "leads to this machine only" in pair(tmp_path).err


@pytest.mark.parametrize(
    ("args", "env", "part"),
    [
        (["--scopes", "root"], {}, "'root'"),
        (["--scopes", "models:read,,"], {}, "''"),
        (["--scopes", ""], {}, "''"),
        (["--scopes", "Admin"], {}, "'Admin'"),
        (["--name", " "], {}, "--name"),
        (["--name", "a\nb"], {}, "--name"),
        (["--name", "x" * 101], {}, "--name"),
        (["--url", "nas.example:8642"], {}, "nas.example:8642"),
        (["--url", "ftp://nas.example"], {}, "ftp://nas.example"),
        (["--url", "http://"], {}, "http://"),
        (["--url", "http://[::1"], {}, "http://[::1"),
        (["--url", "http://x:port"], {}, "http://x:port"),
        (["--url", ""], {}, "no URL"),
        ([], {"RETOMA_URL": "nonsense"}, "nonsense"),
        ([], {"RETOMA_PORT": "0"}, "--url"),
        (["--qr", "--json"], {}, "--qr"),
    ],
)
def test_bad_usage_ends_with_2_and_opens_no_code(
    args: list[str], env: dict[str, str], part: str, tmp_path: Path
) -> None:
    ended = pair(tmp_path / "data", *args, env=env)
    assert ended.status == 2, ended
    assert part in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "data" / "retoma.db").exists()


def test_a_seventeenth_code_is_refused(tmp_path: Path) -> None:
    pair_json(tmp_path)
    store = SqliteStore(tmp_path / "retoma.db")
    for number in range(PAIRINGS_OPEN_MAX - 1):
        command = OpenPairing(f"pair_{number}", "X", "", frozenset({"admin"}), SystemClock().wall_ms())
        store.transact(partial(open_pairing, command=command))
    store.close()
    ended = pair(tmp_path)
    assert (ended.status, ended.out) == (3, "")
    assert "16 codes are open" in ended.err


@pytest.mark.parametrize(
    ("client_id", "status", "part"),
    [
        (f"cli_{'0' * 32}", 1, "there is no client"),
        ("nonsense", 1, "there is no client nonsense"),
        ("", 1, "there is no client"),
        ("cli_local", 3, "command line can't be revoked"),
    ],
)
def test_what_can_not_be_revoked(client_id: str, status: int, part: str, tmp_path: Path) -> None:
    ended = run_retoma("clients", "revoke", client_id, "--data-dir", tmp_path)
    assert ended.status == status, ended
    assert part in ended.err
    assert "Traceback" not in ended.err


def test_a_name_can_not_steer_the_terminal_of_who_lists_it(service: RunningService) -> None:
    printed = pair_json(service.data_dir)
    assert exchange(service, printed["code"], name="\x1b[2J").status_code == 400
    assert exchange(service, printed["code"], name="Gerät 📱").status_code == 201
    assert "Gerät 📱" in run_retoma("clients", "list", "--data-dir", service.data_dir).out


# The QR code


def squares_of(lines: list[str]) -> list[list[int]]:
    """The squares that a terminal shows, 1 for dark, from lines of half blocks."""
    halves = {"█": (0, 0), "▀": (0, 1), "▄": (1, 0), " ": (1, 1)}
    rows: list[list[int]] = []
    for line in lines:
        assert line.startswith("\x1b[38;5;231;48;5;16m")
        assert line.endswith("\x1b[0m")
        pairs = [halves[character] for character in ESCAPE.sub("", line)]
        rows += [[upper for upper, _ in pairs], [lower for _, lower in pairs]]
    return rows


def code_of(text: str) -> list[list[int]]:
    return [[int(square) for square in row] for row in segno.make_qr(text, error="m").matrix_iter(border=4)]


@pytest.mark.parametrize("text", [f"{URL}/#pair=ABCDEFGH", "x", "https://" + "a" * 200])
def test_half_blocks_show_the_code_with_its_quiet_zone(text: str) -> None:
    expected = code_of(text)
    assert squares_of(qr_lines(text, "utf-8"))[: len(expected)] == expected


def test_a_terminal_without_half_blocks_gets_two_spaces_for_each_square() -> None:
    lines = qr_lines("x", "ascii")
    dark = {"231": 0, "16": 1}
    shown = [[dark[colour] for colour in re.findall(r"\x1b\[48;5;(\d+)m  ", line)] for line in lines]
    assert shown == code_of("x")
    assert qr_lines("x", "no-such-encoding") == lines


def on_a_terminal(*args: str) -> str:
    """What the command writes to a terminal."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-P", "-m", "retoma", *args]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment())
    os.close(terminal)
    written = b""
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # how the end of a terminal is told
            break
        written += piece
    os.close(controller)
    assert process.wait(30) == 0, written
    return written.decode().replace("\r\n", "\n")


def test_on_a_terminal_the_qr_code_is_that_of_the_url(tmp_path: Path) -> None:
    shown = on_a_terminal("clients", "pair", "--url", URL, "--data-dir", str(tmp_path))
    url = re.search(r"^URL   (\S+)$", shown, re.MULTILINE)
    assert url is not None
    expected = code_of(url[1])
    assert squares_of([line for line in shown.split("\n") if "█" in line])[: len(expected)] == expected
    assert "█" not in on_a_terminal("clients", "pair", "--no-qr", "--url", URL, "--data-dir", str(tmp_path))


def test_elsewhere_there_is_one_only_when_asked_for(tmp_path: Path) -> None:
    assert "█" not in pair(tmp_path, "--url", URL).out
    assert "█" in pair(tmp_path, "--url", URL, "--qr").out
