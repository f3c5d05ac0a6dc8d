"""Everything that a person can get wrong: one sentence on standard error, the right exit status, no traceback."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest

from retoma.clock import SystemClock
from retoma.store.migrate import prepare
from tests.support.command import Ended, run_retoma
from tests.support.service import RunningService, free_port

UNKNOWN = "resp_" + "0" * 32


def assert_one_sentence(ended: Ended, status: int, part: str) -> None:
    assert ended.status == status, ended
    lines = ended.err.splitlines()
    assert lines[-1].startswith("Error: "), ended.err
    assert part in lines[-1], ended.err
    assert "Traceback" not in ended.err
    assert len(lines[-1]) < 400


BAD_USAGE: list[tuple[Sequence[str], dict[str, str], str]] = [
    (["settings"], {"RETOMA_COLOUR": "red"}, "there is no setting 'colour'"),
    (["settings"], {"RETOMA_WORKERS": "many"}, "workers = 'many'"),
    (["serve", "--port", "99999"], {}, "port = 99999"),
    (["serve", "--workers", "-1"], {}, "below 0"),
    (["serve", "--log-level", "chatty"], {}, "chatty"),
    (["serve", "--store", "mysql://x"], {}, "mysql"),
    (["serve", "--what"], {}, "--what"),
    (["serve"], {"RETOMA_FAILPOINT": "no.such"}, "no.such"),
    (["models", "list"], {"RETOMA_FAILPOINT": "claim.written=explode"}, "explode"),
    (["ask", ""], {}, "the prompt is empty"),
    (["ask"], {}, "the prompt is empty"),
    (["ask", "-"], {}, "the prompt is empty"),
    (["ask", "x", "--follow", "resp_1"], {}, "--follow"),
    (["ask", "x", "--local", "--url", "http://127.0.0.1:1"], {}, "--local"),
    (["ask", "x", "--temperature", "9"], {}, "--temperature"),
    (["ask", "x", "--on-restart", "perhaps"], {}, "perhaps"),
    (["ask", "x", "--url", "ftp://example.com"], {}, "ftp://example.com"),
    (["tasks", "list", "--state", "asleep"], {}, "asleep"),
    (["tasks", "list", "--limit", "0"], {}, "--limit"),
    (["demo", "--model", "x"], {}, "--data-dir"),
    (["demo", "--kill-after", "0"], {}, "--kill-after"),
    (["dance"], {}, "dance"),
    (["models", "add"], {}, "PATH|package:NAME"),
]


@pytest.mark.parametrize(("args", "env", "part"), BAD_USAGE, ids=lambda value: str(value)[:40])
def test_bad_usage_ends_with_2(args: Sequence[str], env: dict[str, str], part: str, tmp_path: Path) -> None:
    ended = run_retoma(*args, env={"RETOMA_DATA_DIR": str(tmp_path), **env})
    assert_one_sentence(ended, 2, part)


@pytest.mark.parametrize("text", ["colour = 'red'", "workers = 'many'", "workers = "])
def test_a_wrong_settings_file_is_bad_usage_and_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "retoma.toml").write_text(text)
    assert_one_sentence(run_retoma("settings", "--data-dir", tmp_path), 2, "retoma.toml")


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = run_retoma("serve", "--data-dir", tmp_path / "data", "--port", str(port))
    assert_one_sentence(ended, 3, f"port {port}")


@pytest.mark.parametrize(
    "command", [["serve", "--port", "0"], ["models", "list"], ["store", "info"], ["store", "check"]]
)
def test_a_data_directory_that_can_t_be_is_a_failure(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    ended = run_retoma(*command, "--data-dir", tmp_path / "file" / "data")
    assert ended.status in {1, 2}
    assert "Traceback" not in ended.err
    assert str(tmp_path / "file" / "data") in ended.err.splitlines()[-1]


@pytest.mark.parametrize(
    "command", [["serve", "--port", "0"], ["models", "list"], ["store", "info"], ["store", "migrate"]]
)
def test_a_newer_store_is_refused_and_left_as_it_is(command: list[str], tmp_path: Path) -> None:
    store = tmp_path / "retoma.db"
    prepare(store, SystemClock().wall_ms())
    connection = apsw.Connection(str(store))
    connection.execute("INSERT INTO migrations VALUES (99, 'later', 'x', 99, 99, 0)")
    connection.close()
    before = store.read_bytes()
    assert_one_sentence(run_retoma(*command, "--data-dir", tmp_path), 3, "newer Retoma")
    assert store.read_bytes() == before


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["models", "list"], ["store", "check"]])
def test_another_program_s_database_is_refused(command: list[str], tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "retoma.db"))
    connection.execute("CREATE TABLE notes (text)")
    connection.close()
    assert_one_sentence(run_retoma(*command, "--data-dir", tmp_path), 3, "another program")


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["models", "list"], ["store", "check"]])
def test_a_store_that_is_no_database_is_refused(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "retoma.db").write_bytes(b"not a database at all" * 500)
    assert_one_sentence(run_retoma(*command, "--data-dir", tmp_path), 3, "not an intact SQLite database")


OVER_HTTP = [
    ["ask", "hello"],
    ["ask", "hello", "--background"],
    ["ask", "--follow", UNKNOWN],
    ["tasks", "list"],
    ["tasks", "show", UNKNOWN],
    ["tasks", "events", UNKNOWN],
    ["tasks", "events", UNKNOWN, "--follow"],
    ["tasks", "cancel", UNKNOWN],
]


@pytest.mark.parametrize("args", OVER_HTTP, ids=" ".join)
def test_where_nothing_listens_it_says_so_at_once(args: list[str], tmp_path: Path) -> None:
    ended = run_retoma(*args, "--url", f"http://127.0.0.1:{free_port()}", "--data-dir", tmp_path)
    assert_one_sentence(ended, 1, "`retoma serve`")


@pytest.mark.parametrize("args", OVER_HTTP, ids=" ".join)
def test_a_wrong_token_is_told_from_a_missing_one(args: list[str], service: RunningService, tmp_path: Path) -> None:
    wrong = run_retoma(*args, "--url", service.url, "--token", "wrong")
    assert_one_sentence(wrong, 1, "doesn't accept this token")
    missing = run_retoma(*args, "--url", service.url, "--data-dir", tmp_path)
    assert_one_sentence(missing, 1, str(tmp_path / "admin.token"))


@pytest.mark.parametrize("args", [args for args in OVER_HTTP if UNKNOWN in args], ids=" ".join)
@pytest.mark.parametrize("response_id", [UNKNOWN, "nonsense", "../models", "a b"])
def test_an_unknown_id_is_a_failure(args: list[str], response_id: str, service: RunningService) -> None:
    named = [response_id if arg == UNKNOWN else arg for arg in args]
    ended = run_retoma(*named, "--url", service.url, "--data-dir", service.data_dir)
    assert_one_sentence(ended, 1, "there is no")


def test_an_unknown_model_is_a_failure(service: RunningService) -> None:
    ended = run_retoma("ask", "hello", "--model", "gpt-9", "--url", service.url, "--data-dir", service.data_dir)
    assert_one_sentence(ended, 1, "gpt-9")


def test_the_token_of_the_data_directory_stays_on_this_machine(tmp_path: Path) -> None:
    from retoma.cli.client import find_target

    assert find_target("http://192.0.2.1:8642", None, None).token == ""
    (tmp_path / "admin.token").write_text("secret\n")
    assert find_target("http://127.0.0.1:1", None, str(tmp_path)).token == "secret"


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1", "http://[::1", "http://127.0.0.1:x", "http://127.0.0.1:70000", "here"]
)
def test_an_address_that_can_not_be_one_is_bad_usage(url: str, tmp_path: Path) -> None:
    assert_one_sentence(run_retoma("tasks", "list", "--url", url, "--data-dir", tmp_path), 2, "is no URL of a service")


def test_only_debug_shows_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "retoma.db").write_bytes(b"not a database at all" * 500)
    assert "Traceback" not in run_retoma("models", "list", "--data-dir", tmp_path).err
    shown = run_retoma("--debug", "models", "list", "--data-dir", tmp_path)
    assert (shown.status, "Traceback" in shown.err) == (3, True)


def test_an_unexpected_error_is_one_sentence_that_names_debug(capsys: pytest.CaptureFixture[str]) -> None:
    from retoma.cli.failures import Run, status_of

    assert status_of(ZeroDivisionError("division by zero"), Run()) == 1
    told = capsys.readouterr().err
    assert told.startswith("Error: ZeroDivisionError: division by zero")
    assert "--debug" in told
    assert told.count("\n") == 1
