"""`retoma models`: registered whole or not at all, whatever interrupts it."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api import Api
from tests.support.command import Ended, Running, run_retoma
from tests.support.service import RunningService, start_service
from tests.support.waiting import wait_for


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
    with start_service(tmp_path / "data") as service:
        assert run_retoma("models", "add", gguf, "--data-dir", service.data_dir).status == 0
        listed = httpx.get(f"{service.url}/v1/models", headers=service.headers).json()["data"]
        assert "tiny-model" in [model["id"] for model in listed]


# Two at once


def add_at_once(folder: Path, data_dir: Path, *commands: tuple[str | Path, ...]) -> list[Ended]:
    """Both have staged their copies before either goes on."""
    paused = {"RETOMA_FAILPOINT": "model.staged=pause"}
    with ExitStack() as stack:
        adding = [
            stack.enter_context(
                Running(folder / f"add{number}", "models", "add", *command, "--data-dir", data_dir, env=paused)
            )
            for number, command in enumerate(commands)
        ]
        for one in adding:
            os.waitid(os.P_PID, one.process.pid, os.WSTOPPED | os.WNOWAIT)
        for one in adding:
            one.process.send_signal(signal.SIGCONT)
        return [one.wait() for one in adding]


def files(data_dir: Path) -> list[Path]:
    return sorted(path for path in (data_dir / "models").rglob("*") if path.is_file())


def changed_copy(gguf: Path) -> Path:
    other = gguf.with_name("Other.gguf")
    other.write_bytes(gguf.read_bytes() + bytes(32))
    return other


@pytest.mark.requirement("S-003a")
def test_the_same_content_added_twice_at_once_is_one_file_and_each_name_one_row(gguf: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    same = add_at_once(tmp_path, data_dir, (gguf,), (gguf,))
    assert ([ended.status for ended in same], len(models(data_dir)), len(files(data_dir))) == ([0, 0], 1, 1)
    named = add_at_once(tmp_path, data_dir, (gguf, "--name", "a"), (gguf, "--name", "b"))
    assert ([ended.status for ended in named], len(models(data_dir)), len(files(data_dir))) == ([0, 0], 3, 1)
    assert run_retoma("models", "verify", "--data-dir", data_dir).status == 0


@pytest.mark.requirement("S-003a", "S-003")
def test_of_two_contents_added_under_one_name_at_once_one_is_registered_and_the_other_refused(
    gguf: Path, tmp_path: Path
) -> None:
    data_dir, other = tmp_path / "data", changed_copy(gguf)
    ended = add_at_once(tmp_path, data_dir, (gguf, "--name", "one"), (other, "--name", "one"))
    assert sorted(one.status for one in ended) == [0, 3]
    (registered,) = models(data_dir)
    assert registered["digest"] in {path.name for path in files(data_dir)}
    assert run_retoma("models", "verify", "--data-dir", data_dir).status == 0
    both = add_at_once(tmp_path, data_dir, (gguf, "--name", "two"), (other, "--name", "three"))
    assert ([one.status for one in both], len(models(data_dir)), len(files(data_dir))) == ([0, 0], 3, 2)


def test_a_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    import gguf as library

    writer = library.GGUFWriter(tmp_path / "part.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ended = run_retoma("models", "add", tmp_path / "part.gguf", "--data-dir", tmp_path / "data")
    assert_fails(ended, "one of 3 parts")
    assert not (tmp_path / "data").exists()


# Files that change or vanish


def path_of(data_dir: Path) -> Path:
    (model,) = models(data_dir)
    digest = str(model["digest"])
    return data_dir / "models" / "sha256" / digest[:2] / digest


def state_of(service: RunningService) -> str:
    listed = httpx.get(f"{service.url}/v1/models", headers=service.headers).json()["data"]
    (state,) = (model["state"] for model in listed if model["id"] != "scripted")
    return state


@pytest.mark.requirement("S-007", "P-11.1-files")
@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_start_marks_a_model_whose_file_is_gone_or_cut_and_another_finds_it_back(
    gguf: Path, tmp_path: Path, damage: str
) -> None:
    data_dir = tmp_path / "data"
    assert run_retoma("models", "add", gguf, "--data-dir", data_dir).status == 0
    path = path_of(data_dir)
    whole = path.rename(tmp_path / "aside")
    if damage == "short":
        path.write_bytes(whole.read_bytes()[:-1])
    with start_service(data_dir) as service:
        wait_for(lambda: state_of(service) == "corrupt", "the file to be looked at")
        assert service.log.count(f"the file of tiny-model {'is missing' if damage == 'missing' else 'has '}") == 1
    whole.replace(path)
    with start_service(data_dir) as service:
        wait_for(lambda: state_of(service) == "available", "the file to be looked at")
        assert "the file of tiny-model is back, and whole" in service.log
    assert run_retoma("models", "verify", "--data-dir", data_dir).status == 0


def test_a_missing_file_is_marked_by_verify_and_found_back_by_it(gguf: Path, tmp_path: Path) -> None:
    assert run_retoma("models", "add", gguf, "--data-dir", tmp_path / "data").status == 0
    path = path_of(tmp_path / "data")
    aside = path.rename(tmp_path / "aside")
    assert run_retoma("models", "verify", "--data-dir", tmp_path / "data").status == 1
    assert models(tmp_path / "data")[0]["state"] == "corrupt"
    aside.rename(path)
    assert run_retoma("models", "verify", "--data-dir", tmp_path / "data").status == 0
    assert models(tmp_path / "data")[0]["state"] == "available"


def flip_a_byte(path: Path, *, quietly: bool) -> None:
    """Quietly: as a disk does it, without a new time of change."""
    path.chmod(0o644)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    if quietly:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.requirement("P-11.1-files")
@pytest.mark.xdist_group("model")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("verified", [True, False], ids=["verified", "found when it is loaded"])
def test_a_flipped_byte_keeps_the_real_engine_from_its_model_until_it_is_flipped_back(
    small_model: str, tmp_path: Path, *, verified: bool
) -> None:
    data_dir = tmp_path / "data"
    assert run_retoma("models", "add", small_model, "--name", "small", "--data-dir", data_dir).status == 0
    path = path_of(data_dir)
    with start_service(data_dir, env={"RETOMA_SCRIPTED": "0", "RETOMA_STALL_TIMEOUT_S": "240"}) as service:
        api = Api(service)

        def answered() -> tuple[str, str | None]:
            made = api.create("The sea is", model="small", max_output_tokens=4)
            ended = wait_for(lambda: over(api.get(made)), "the end of the text", 200)
            return ended["status"], (ended["error"] or {}).get("code")

        assert answered() == ("incomplete", None)
        flip_a_byte(path, quietly=verified)
        if verified:
            assert_fails(run_retoma("models", "verify", "--data-dir", data_dir), "small can't be used")
            assert state_of(service) == "corrupt"
        assert answered() == ("failed", "model_corrupt")
        assert answered() == ("failed", "model_corrupt")
        assert state_of(service) == "corrupt"
        flip_a_byte(path, quietly=verified)
        assert answered() == ("incomplete", None)
        assert state_of(service) == "available"


def over(response: dict[str, Any]) -> dict[str, Any] | None:
    return None if response["status"] in {"queued", "in_progress"} else response


@pytest.mark.xdist_group("model")
def test_a_model_of_a_package_is_found_without_importing_it(small_model: str, tmp_path: Path) -> None:
    ended = run_retoma("models", "add", small_model, "--name", "small", "--json", "--data-dir", tmp_path)
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["facts"]["architecture"] == "llama"
