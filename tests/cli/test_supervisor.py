"""Running under systemd: the unit is sound, and the service says when it is ready and when it stops."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service import start_service
from tests.support.waiting import BOUND_S

PACKAGING = Path(__file__).parents[2] / "packaging"


@pytest.mark.parametrize("abstract", [False, True], ids=["file", "abstract"])
def test_the_supervisor_hears_that_the_service_is_ready_and_that_it_stops(tmp_path: Path, *, abstract: bool) -> None:
    name = f"@retoma-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(name.replace("@", "\0"))
        supervisor.settimeout(BOUND_S)
        with start_service(tmp_path / "data", env={"NOTIFY_SOCKET": name}) as service:
            assert supervisor.recv(100) == b"READY=1"
            assert service.stop() == 0
        assert supervisor.recv(100) == b"STOPPING=1"


def test_a_supervisor_that_does_not_listen_holds_nothing_up(tmp_path: Path) -> None:
    with start_service(tmp_path / "data", env={"NOTIFY_SOCKET": str(tmp_path / "nobody")}) as service:
        assert service.stop() == 0


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        assert not os.environ.get("CI"), "systemd-analyze is missing in CI"
        pytest.skip("systemd is not installed on this machine")
    unit = (PACKAGING / "retoma.service").read_text()
    command = Path(sys.executable).with_name("retoma")
    assert unit.count("/opt/retoma/bin/retoma ") == 1
    (tmp_path / "retoma.service").write_text(unit.replace("/opt/retoma/bin/retoma", str(command)))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "retoma.service")],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_container_file_copies_what_is_there_and_installs_what_exists() -> None:
    text = (PACKAGING / "Containerfile").read_text()
    root = PACKAGING.parent
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert {"src", "pyproject.toml"} <= set(copied)
    assert [name for name in copied if not (root / name).exists()] == []
    extras = re.search(r"'\.\[([\w,]+)\]'", text)
    assert extras
    project = (root / "pyproject.toml").read_text()
    assert [extra for extra in extras[1].split(",") if f"\n{extra} = [" not in project] == []
    strip = re.search(r"(sed '.*?' requirements/dev\.lock)", text)
    assert strip
    constraints = subprocess.run(["bash", "-c", strip[1]], cwd=root, capture_output=True, text=True, check=True).stdout
    pins = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    assert len(pins) > 50
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+(\[\w+(,\w+)*\])?==[\w.+!]+( ; .+)?", pin)] == []
