"""`retoma models add hf:…`: from a hub of the test's own; killed, cut off, lied to; never half a model."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retoma.blobs.download import NoRoom, Remote, take_in
from retoma.blobs.models import ModelFiles
from retoma.cli.hub import parse
from retoma.errors import InvalidRequest
from tests.support.command import Ended, Running, run_retoma
from tests.support.hub_server import COMMIT, Hub, serve_hub
from tests.support.service import SOURCE as SOURCE_FOLDER
from tests.support.service import free_port
from tests.support.shim import built
from tests.support.waiting import wait_for

pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")

REPO, FILE = "owner/Tiny-GGUF", "Tiny-Q4.gguf"
SOURCE = f"hf:{REPO}/{FILE}"
PADDING = 5_000_000


@pytest.fixture
def content(gguf: Path) -> bytes:
    """A valid model file with something behind it, so that it comes in many pieces."""
    return gguf.read_bytes() + bytes(range(256)) * (PADDING // 256)


@pytest.fixture
def hub(content: bytes) -> Iterator[Hub]:
    with serve_hub() as serving:
        serving.files[REPO] = {FILE: content, "README.md": b"read me"}
        yield serving


def environment(hub: Hub, folder: Path, **more: str) -> dict[str, str]:
    """Of a command that knows this hub and no other, and no token of the machine's user."""
    home = {"HF_HOME": str(folder / "hf-home"), "HOME": str(folder)}
    return {"HF_ENDPOINT": hub.url, "HF_TOKEN": "", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*", **home, **more}


def add(hub: Hub, folder: Path, source: str = SOURCE, *options: str, **env: str) -> Ended:
    command = ("models", "add", source, "--data-dir", folder / "data", *options)
    return run_retoma(*command, env=environment(hub, folder, **env))


def models(folder: Path) -> list[dict[str, Any]]:
    return json.loads(run_retoma("models", "list", "--json", "--data-dir", folder / "data").out)


def incoming(folder: Path) -> list[Path]:
    return sorted((folder / "data" / "models" / "incoming").glob("*"))


def wait_for_part(hub: Hub, folder: Path) -> None:
    """The server stands still, and what it has sent is on the disk."""
    assert hub.standing.wait(30)
    wait_for(lambda: any(part.stat().st_size > 2_700_000 for part in incoming(folder)), "a part")


def assert_fails(ended: Ended, *parts: str, status: int = 1) -> None:
    assert ended.status == status, ended
    assert ended.err.splitlines()[-1].startswith("Error: ")
    assert [part for part in parts if part not in ended.err] == []
    assert "Traceback" not in ended.err


def assert_whole(folder: Path, content: bytes) -> dict[str, Any]:
    """The model is registered with its content, nothing is left over, and nothing is in the hub's own cache."""
    (model,) = models(folder)
    digest = hashlib.sha256(content).hexdigest()
    path = folder / "data" / "models" / "sha256" / digest[:2] / digest
    assert (model["digest"], model["size_bytes"], path.read_bytes()) == (digest, len(content), content)
    assert incoming(folder) == []
    assert [one for one in (folder / "hf-home").rglob("*") if one.is_file()] == []
    assert run_retoma("models", "verify", "--data-dir", folder / "data").status == 0
    return model


def test_a_file_of_a_hub_is_fetched_checked_and_registered_with_its_commit(
    hub: Hub, tmp_path: Path, content: bytes
) -> None:
    ended = add(hub, tmp_path)
    assert ended.status == 0, ended.err
    model = assert_whole(tmp_path, content)
    assert (model["name"], model["source"]) == ("tiny-q4", f"{SOURCE}@{COMMIT}")
    assert model["facts"]["architecture"] == "llama"
    assert {one.path for one in hub.gets()} == {f"/{REPO}/resolve/{COMMIT}/{FILE}"}
    assert hub.bytes_sent == len(content)


def test_the_only_model_of_a_repository_need_not_be_named_and_a_revision_may_be(
    hub: Hub, tmp_path: Path, content: bytes
) -> None:
    assert add(hub, tmp_path, f"hf:{REPO}@v1", "--name", "mine").status == 0
    assert assert_whole(tmp_path, content)["name"] == "mine"


def test_of_several_models_one_must_be_named_and_they_are_listed(hub: Hub, tmp_path: Path, content: bytes) -> None:
    hub.files[REPO]["sub/Other-Q8.GGUF"] = b"GGUF" * 500
    ended = add(hub, tmp_path, f"hf:{REPO}@v1")
    assert_fails(ended, "has 2 .gguf files", f"hf:{REPO}/sub/Other-Q8.GGUF@v1", "(2.0 kB)", f"hf:{REPO}/{FILE}@v1")
    assert models(tmp_path) == []
    assert add(hub, tmp_path, f"{SOURCE}@v1").status == 0
    assert_whole(tmp_path, content)


@pytest.mark.requirement("S-005")
def test_after_a_kill_only_the_rest_is_fetched(hub: Hub, tmp_path: Path, content: bytes) -> None:
    hub.stands_still_after = 3_000_000
    command = ("models", "add", SOURCE, "--data-dir", tmp_path / "data")
    with Running(tmp_path / "run", *command, env=environment(hub, tmp_path)) as adding:
        wait_for_part(hub, tmp_path)
        adding.process.kill()
        assert adding.wait().status == -signal.SIGKILL
    hub.go_on.set()
    assert models(tmp_path) == []
    (part,) = incoming(tmp_path)
    had, sent = part.stat().st_size, hub.bytes_sent
    assert add(hub, tmp_path).status == 0
    assert_whole(tmp_path, content)
    assert hub.gets()[-1].range == f"bytes={had}-"
    assert hub.bytes_sent - sent == len(content) - had < len(content) // 2


def test_ctrl_c_ends_with_130_and_keeps_what_has_come(hub: Hub, tmp_path: Path, content: bytes) -> None:
    hub.stands_still_after = 3_000_000
    command = ("models", "add", SOURCE, "--data-dir", tmp_path / "data")
    with Running(tmp_path / "run", *command, env=environment(hub, tmp_path)) as adding:
        wait_for_part(hub, tmp_path)
        adding.interrupt()
        ended = adding.wait()
        assert (ended.status, "Traceback" in ended.err) == (130, False)
    hub.go_on.set()
    assert add(hub, tmp_path).status == 0
    assert hub.gets()[-1].range is not None
    assert_whole(tmp_path, content)


def test_a_line_that_breaks_again_and_again_brings_the_file_piece_by_piece(
    hub: Hub, tmp_path: Path, content: bytes
) -> None:
    hub.breaks_off_after = [1_000_000, 0, 700_000, 0, 0, 1_500_000]
    assert add(hub, tmp_path).status == 0
    assert_whole(tmp_path, content)
    assert [one.range for one in hub.gets()][:2] == [None, f"bytes={-(-1_000_000 // 65536) * 65536}-"]
    assert hub.bytes_sent == len(content)


def test_a_server_that_goes_away_is_told_and_the_part_is_kept(hub: Hub, tmp_path: Path, content: bytes) -> None:
    hub.breaks_off_after = [2_000_000, *[0] * 6]
    assert_fails(add(hub, tmp_path), "breaks off after 2", "run the same command again")
    assert (len(incoming(tmp_path)), models(tmp_path)) == (1, [])
    assert add(hub, tmp_path).status == 0
    assert_whole(tmp_path, content)


def test_a_server_that_knows_no_ranges_sends_it_again_from_the_beginning(
    hub: Hub, tmp_path: Path, content: bytes
) -> None:
    hub.honours_range, hub.breaks_off_after = False, [2_000_000]
    assert add(hub, tmp_path).status == 0
    assert_whole(tmp_path, content)


def test_a_part_that_a_power_cut_has_spoilt_is_found_out(hub: Hub, tmp_path: Path, content: bytes) -> None:
    hub.breaks_off_after = [2_000_000, *[0] * 6]
    assert add(hub, tmp_path).status == 1
    (part,) = incoming(tmp_path)
    part.write_bytes(part.read_bytes()[:-1000] + bytes(1000))
    assert_fails(add(hub, tmp_path), "another digest", "thrown away")
    assert (incoming(tmp_path), models(tmp_path)) == ([], [])
    assert add(hub, tmp_path).status == 0
    assert_whole(tmp_path, content)


def test_content_that_is_not_what_was_announced_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.digests[FILE] = "0" * 64
    assert_fails(add(hub, tmp_path), "another digest")
    assert (incoming(tmp_path), models(tmp_path)) == ([], [])


@pytest.mark.parametrize("off", [-1_000, 1_000])
def test_a_size_that_is_not_what_was_announced_is_refused(hub: Hub, tmp_path: Path, content: bytes, off: int) -> None:
    hub.sizes[FILE] = len(content) + off
    ended = add(hub, tmp_path)
    assert_fails(ended, "it announced" if off < 0 else "breaks off")
    assert models(tmp_path) == []


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324 - as git names a file


def test_a_file_that_the_hub_keeps_in_git_is_checked_by_gits_digest(hub: Hub, tmp_path: Path, content: bytes) -> None:
    hub.digests[FILE] = git_sha1(content + b"x")
    assert_fails(add(hub, tmp_path), "another digest")
    hub.digests[FILE] = git_sha1(content)
    assert add(hub, tmp_path).status == 0
    assert_whole(tmp_path, content)


def test_without_a_digest_nothing_of_an_earlier_try_is_used(hub: Hub, tmp_path: Path, content: bytes) -> None:
    hub.digests[FILE] = ""
    hub.breaks_off_after = [2_000_000, *[0] * 6]
    assert add(hub, tmp_path).status == 1
    assert incoming(tmp_path) == []
    assert add(hub, tmp_path).status == 0
    assert hub.gets()[-1].range is None
    assert_whole(tmp_path, content)


def test_what_is_no_model_is_thrown_away(hub: Hub, tmp_path: Path) -> None:
    hub.files[REPO][FILE] = b"PK\x03\x04" + bytes(100_000)
    assert_fails(add(hub, tmp_path), "not a GGUF file")
    assert (incoming(tmp_path), models(tmp_path)) == ([], [])


def test_the_token_goes_to_the_hub_and_to_no_other_host(hub: Hub, tmp_path: Path, content: bytes) -> None:
    hub.token = "hf_secret"
    hub.elsewhere = hub.url.replace("127.0.0.1", "localhost")
    ended = add(hub, tmp_path, HF_TOKEN="hf_secret")
    assert ended.status == 0, ended.err
    assert_whole(tmp_path, content)
    shown = {one.path.startswith("/elsewhere"): one.authorization for one in hub.gets()}
    assert shown == {False: "Bearer hf_secret", True: None}
    assert "hf_secret" not in ended.out + ended.err


def test_content_that_is_here_already_is_not_fetched_again(hub: Hub, tmp_path: Path, content: bytes) -> None:
    local = tmp_path / "local.gguf"
    local.write_bytes(content)
    assert run_retoma("models", "add", local, "--data-dir", tmp_path / "data").status == 0
    assert add(hub, tmp_path).status == 0
    assert hub.gets() == []
    assert {model["digest"] for model in models(tmp_path)} == {hashlib.sha256(content).hexdigest()}
    assert sorted(str(model["name"]) for model in models(tmp_path)) == ["local", "tiny-q4"]


def test_a_name_of_another_content_is_refused_before_anything_is_fetched(hub: Hub, tmp_path: Path, gguf: Path) -> None:
    assert run_retoma("models", "add", gguf, "--name", "tiny-q4", "--data-dir", tmp_path / "data").status == 0
    assert_fails(add(hub, tmp_path), "other content", status=3)
    assert hub.gets() == []


def test_two_who_fetch_the_same_go_one_after_the_other_and_it_comes_once(
    hub: Hub, tmp_path: Path, content: bytes
) -> None:
    hub.stands_still_after = 2_000_000
    command = ("models", "add", SOURCE, "--data-dir", tmp_path / "data")
    env = environment(hub, tmp_path)
    with (
        Running(tmp_path / "one", *command, env=env) as one,
        Running(tmp_path / "two", *command, "--name", "two", env=env) as two,
    ):
        assert hub.standing.wait(30)
        wait_for(lambda: sum(asked.method == "HEAD" for asked in hub.asked) == 2, "both to ask")
        hub.go_on.set()
        assert (one.wait().status, two.wait().status) == (0, 0)
    assert hub.bytes_sent == len(content)
    assert sorted(str(model["name"]) for model in models(tmp_path)) == ["tiny-q4", "two"]
    assert incoming(tmp_path) == []


@pytest.mark.requirement("S-005")
@pytest.mark.parametrize("point", ["model.staged", "model.renamed", "model_row.written", "model_row.committed"])
def test_a_kill_at_a_failpoint_leaves_no_half_model_and_nothing_is_fetched_twice(
    hub: Hub, tmp_path: Path, content: bytes, point: str
) -> None:
    assert add(hub, tmp_path, RETOMA_FAILPOINT=point).status == -signal.SIGKILL
    assert len(models(tmp_path)) == (point == "model_row.committed")
    assert add(hub, tmp_path).status == 0
    assert_whole(tmp_path, content)
    assert hub.bytes_sent == len(content)


REFUSALS = {
    "gated": ((403, "GatedRepo"), "is gated"),
    "private or absent": ((401, "RepoNotFound"), "shows no repository"),
    "forbidden": ((403, ""), "does not accept the token (status 403)"),
    "broken": ((500, ""), "status 500"),
}


@pytest.mark.parametrize("kind", REFUSALS)
@pytest.mark.parametrize("source", [SOURCE, f"hf:{REPO}"])
def test_a_refusal_is_one_sentence(hub: Hub, tmp_path: Path, kind: str, source: str) -> None:
    hub.refused[REPO], part = REFUSALS[kind]
    assert_fails(add(hub, tmp_path, source), part)
    assert models(tmp_path) == []


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("hf:owner/none", "shows no repository owner/none"),
        ("hf:owner/none/x.gguf", "shows no repository owner/none"),
        (f"hf:{REPO}/none.gguf", "has no file none.gguf"),
        (f"{SOURCE}@none", "has no revision none"),
        (f"hf:{REPO}@none", "has no revision none"),
        ("hf:owner/empty", "has no .gguf file"),
    ],
)
def test_what_is_not_there_is_told(hub: Hub, tmp_path: Path, source: str, part: str) -> None:
    hub.files["owner/empty"] = {"README.md": b""}
    assert_fails(add(hub, tmp_path, source), part)


@pytest.mark.parametrize(
    "source",
    [
        "hf:",
        "hf:owner",
        "hf:owner/",
        "hf:/x",
        "hf:o/r@",
        "hf:o//x.gguf",
        "hf:o/r/x.bin",
        "hf:o/r/x-00001-of-00003.gguf",
    ],
)
def test_what_names_no_model_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequest):
        parse(source)


def test_a_name_that_no_repository_can_have_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    assert_fails(add(hub, tmp_path, "hf:o wner/re..po"), "can't be the name of a repository")


def test_without_a_hub_that_answers_it_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    assert_fails(add(hub, tmp_path, HF_ENDPOINT=nobody), f"{nobody} can't be reached")
    assert_fails(add(hub, tmp_path, HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE is set")
    assert hub.asked == []


def test_without_the_extra_it_is_named(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "huggingface_hub.py").write_text("raise ImportError\n")
    ended = add(hub, tmp_path, PYTHONPATH=f"{tmp_path / 'without'}{os.pathsep}{SOURCE_FOLDER}")
    assert_fails(ended, "pip install 'retoma[hub]'", status=3)


# A full disk


def test_a_disk_that_fills_up_is_one_sentence_and_the_download_goes_on_later(
    hub: Hub, tmp_path: Path, content: bytes
) -> None:
    """From the twentieth write into the import folder on, the disk is full, for the command and not for its store."""
    (tmp_path / "full").mkdir()
    folder = tmp_path / "data" / "models" / "incoming"
    (tmp_path / "full" / "sitecustomize.py").write_text(
        "import ctypes, os\n"
        f"ctypes.CDLL(os.environ['LD_PRELOAD']).shim_arm({str(folder).encode()!r}, ctypes.c_long(20), 4, 1)\n"
    )
    path = os.pathsep.join([str(tmp_path / "full"), str(SOURCE_FOLDER)])
    ended = add(hub, tmp_path, LD_PRELOAD=str(built()), PYTHONPATH=path)
    assert_fails(ended, f"the disk of {tmp_path / 'data'} is full; the file takes 5.0 MB")
    assert (len(incoming(tmp_path)), models(tmp_path)) == (1, [])
    assert add(hub, tmp_path).status == 0
    assert hub.gets()[-1].range is not None
    assert_whole(tmp_path, content)


def test_without_room_for_the_rest_nothing_is_fetched(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    remote = Remote(f"{hub.url}/{REPO}/resolve/main/{FILE}", {}, 5_000_096, sha256="0" * 64)
    with pytest.raises(NoRoom, match="has 1 MB left and the rest of the file takes 5 MB"):
        take_in(ModelFiles(tmp_path / "models"), remote, lambda _done, _total: None)
    assert hub.asked == []
