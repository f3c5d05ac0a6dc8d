"""`retoma models`: registered whole or not at all, whatever interrupts it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.command import Ended, Running, run_retoma
from tests.support.service import start_service


def models(data_dir: Path) -> list[dict[str, object]]:
    return json.loads(run_retoma("models", "list", "--json", "--data-dir", data_dir).out)


def assert_fails(ended: Ended, part: str, status: int = 1) -> None:
    assert ended.status == status, ended
    assert ended.err.splitlines()[-1].startswith("Error: ")
    assert part in ended.err
    assert "Traceback" not in ended.err


def test_a_model_is_added_listed_shown_verified_and_removed(gguf: Path, tmp_path: Path) -> None:
    at = ("--data-dir", tmp_path / "data")
    added = run_retoma("models", "add", gguf, *at)
    assert (added.status, added.out.split()[0]) == (0, "tiny-model")
    assert [model["name"] for model in models(tmp_path / "data")] == ["tiny-model"]
    shown = json.loads(run_retoma("models", "show", "tiny-model", "--json", *at).out)
    assert shown["facts"] == {"tensors": 0, "architecture": "llama", "name": "Tiny", "context_length": 128}
    assert Path(shown["path"]).read_bytes() == gguf.read_bytes()
    verified = run_retoma("models", "verify", "--json", *at)
    assert json.loads(verified.out) == [{"name": "tiny-model", "result": "intact"}]
    assert run_retoma("models", "remove", "tiny-model", *at).status == 0
    assert models(tmp_path / "data") == []
    assert not Path(shown["path"]).exists()


def test_adding_the_same_file_again_changes_nothing(gguf: Path, tmp_path: Path) -> None:
    at = ("--data-dir", tmp_path / "data")
    assert [run_retoma("models", "add", gguf, *at).status for _ in range(2)] == [0, 0]
    assert len(models(tmp_path / "data")) == 1


def test_a_name_is_not_given_to_another_content(gguf: Path, tmp_path: Path) -> None:
    at = ("--data-dir", tmp_path / "data")
    run_retoma("models", "add", gguf, "--name", "one", *at)
    with gguf.open("ab") as file:
        file.write(b"\0" * 32)
    assert_fails(run_retoma("models", "add", gguf, "--name", "one", *at), "other content", status=3)


def test_verify_finds_a_changed_and_a_missing_file(gguf: Path, tmp_path: Path) -> None:
    at = ("--data-dir", tmp_path / "data")
    run_retoma("models", "add", gguf, *at)
    path = Path(json.loads(run_retoma("models", "show", "tiny-model", "--json", *at).out)["path"])
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert_fails(run_retoma("models", "verify", *at), "tiny-model can't be used")
    assert models(tmp_path / "data")[0]["state"] == "corrupt"
    assert run_retoma("models", "add", gguf, *at).status == 0
    assert models(tmp_path / "data")[0]["state"] == "available"
    assert run_retoma("models", "verify", *at).status == 0
    path.unlink()
    missing = run_retoma("models", "verify", "--json", *at)
    assert (missing.status, json.loads(missing.out)[0]["result"]) == (1, "missing")


@pytest.mark.parametrize("point", ["model.staged", "model.renamed", "model_row.written", "model_row.committed"])
def test_a_killed_add_leaves_nothing_half_registered_and_can_be_repeated(
    gguf: Path, tmp_path: Path, point: str
) -> None:
    data_dir = tmp_path / "data"
    killed = run_retoma("models", "add", gguf, "--data-dir", data_dir, env={"RETOMA_FAILPOINT": point})
    assert killed.status == -signal.SIGKILL
    for model in models(data_dir):
        assert point == "model_row.committed"
        assert run_retoma("models", "verify", str(model["name"]), "--data-dir", data_dir).status == 0
    assert run_retoma("models", "add", gguf, "--data-dir", data_dir).status == 0
    assert run_retoma("models", "verify", "--data-dir", data_dir).status == 0
    assert [model["name"] for model in models(data_dir)] == ["tiny-model"]


def test_ctrl_c_during_an_add_ends_with_130_and_leaves_nothing(gguf: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    paused = {"RETOMA_FAILPOINT": "model.staged=pause"}
    with Running(tmp_path / "add", "models", "add", gguf, "--data-dir", data_dir, env=paused) as adding:
        os.waitid(os.P_PID, adding.process.pid, os.WSTOPPED | os.WNOWAIT)
        adding.interrupt()
        adding.process.send_signal(signal.SIGCONT)
        assert adding.wait().status == 130
    assert list((data_dir / "models" / "incoming").iterdir()) == []
    assert models(data_dir) == []
    assert run_retoma("models", "add", gguf, "--data-dir", data_dir).status == 0


@pytest.mark.parametrize("point", ["model.staged", "model.renamed", "model_row.written"])
def test_an_error_while_adding_is_one_sentence(gguf: Path, tmp_path: Path, point: str) -> None:
    failing = {"RETOMA_FAILPOINT": f"{point}=error"}
    ended = run_retoma("models", "add", gguf, "--data-dir", tmp_path / "data", env=failing)
    assert_fails(ended, "")
    assert models(tmp_path / "data") == []


def test_a_full_disk_is_one_sentence(gguf: Path, tmp_path: Path) -> None:
    """Every write to /dev/full fails as on a full disk."""
    from retoma.cli.models import _sentence_for
    from retoma.settings import Settings

    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError, match="No space") as caught:
        full.write(b"x")
    sentence = _sentence_for(caught.value, gguf, Settings(data_dir=tmp_path))
    assert sentence.startswith(f"the disk of {tmp_path} is full; free ")


def bad_files(folder: Path, gguf: Path) -> dict[str, tuple[Path, str]]:
    whole = gguf.read_bytes()
    files = {
        "empty": b"",
        "foreign": b"PK\x03\x04" + b"x" * 100,
        "header": whole[:10],
        "half": whole[: len(whole) // 2],
    }
    for name, content in files.items():
        (folder / f"{name}.gguf").write_bytes(content)
    return {
        "absent": (folder / "absent.gguf", "is not there"),
        "directory": (folder, "is a directory"),
        "device": (Path("/dev/null"), "no regular file"),
        "long": (folder / ("x" * 300 + ".gguf"), "can't be read"),
        "unreadable": (Path("/proc/self/mem"), "Input/output error"),  # root may read everything else
        "empty": (folder / "empty.gguf", "not a GGUF file"),
        "foreign": (folder / "foreign.gguf", "not a GGUF file"),
        "header": (folder / "header.gguf", "truncated"),
        "half": (folder / "half.gguf", "truncated"),
    }


@pytest.mark.parametrize(
    "kind", ["absent", "directory", "device", "long", "unreadable", "empty", "foreign", "header", "half"]
)
def test_a_file_that_is_no_model_is_refused_before_anything_is_copied(kind: str, gguf: Path, tmp_path: Path) -> None:
    path, part = bad_files(tmp_path, gguf)[kind]
    assert_fails(run_retoma("models", "add", path, "--data-dir", tmp_path / "data"), part)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 201, "scripted", "naïve"])
def test_a_name_that_can_t_be_is_refused(name: str, gguf: Path, tmp_path: Path) -> None:
    ended = run_retoma("models", "add", f"--name={name}", gguf, "--data-dir", tmp_path / "data")
    assert_fails(ended, "the name")


@pytest.mark.parametrize("package", ["no-such-package", "json", "", "os.path", "../x"])
def test_a_package_without_a_model_is_refused(package: str, tmp_path: Path) -> None:
    assert_fails(run_retoma("models", "add", f"package:{package}", "--data-dir", tmp_path), "package")


@pytest.mark.parametrize("command", [["show", "nobody"], ["verify", "nobody"], ["remove", "nobody"]])
def test_an_unknown_model_is_a_failure(command: list[str], tmp_path: Path) -> None:
    assert_fails(run_retoma("models", *command, "--data-dir", tmp_path), "no model named 'nobody'")


def test_a_running_service_sees_a_model_at_once(gguf: Path, tmp_path: Path) -> None:
    import httpx

    with start_service(tmp_path / "data") as service:
        assert run_retoma("models", "add", gguf, "--data-dir", service.data_dir).status == 0
        listed = httpx.get(f"{service.url}/v1/models", headers=service.headers).json()["data"]
        assert "tiny-model" in [model["id"] for model in listed]


@pytest.mark.xdist_group("model")
def test_a_model_of_a_package_is_found_without_importing_it(small_model: str, tmp_path: Path) -> None:
    ended = run_retoma("models", "add", small_model, "--name", "small", "--json", "--data-dir", tmp_path)
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["facts"]["architecture"] == "llama"
