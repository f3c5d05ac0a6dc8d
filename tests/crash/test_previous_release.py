"""The previous release, as its wheel, on one store with this one: side by side, upgrade, way back, crash images.

The wheel lies in tests/versions and runs from a folder that only its own processes have on their path, with the
libraries of this environment. What it is asked for is what its own clients could ask for.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import retoma
from tests.support.api import Api, text_of
from tests.support.audit import assert_store_is_sound
from tests.support.places import another_host
from tests.support.service import RunningService, launch_service, start_service

WHEELS = sorted((Path(__file__).parents[1] / "versions").glob("retoma-*.whl"))
PREVIOUS = WHEELS[-1].name.split("-")[1]
SLOW = {"RETOMA_SCRIPTED_TOKEN_MS": "12", "RETOMA_SCRIPTED_TOKENS": "150", "RETOMA_WORKERS": "2"}
REFUSED = 3


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A folder with the previous release's package, for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("previous")
    with zipfile.ZipFile(WHEELS[-1]) as wheel:
        wheel.extractall(folder)
    yield str(folder)
    shutil.rmtree(folder)


@pytest.fixture
def old(old_code: str) -> dict[str, str]:
    """The environment in which `retoma` is the previous release."""
    return {**SLOW, "PYTHONPATH": old_code}


def release_of(service: RunningService) -> str:
    api = Api(service)
    return api.http.get("/v1/service").json()["release"]


@pytest.mark.requirement("S-004", "S-004b")
@pytest.mark.timeout(240)
def test_two_releases_serve_one_store_at_once_and_each_takes_over_from_the_other(
    data_dir: Path, old: dict[str, str]
) -> None:
    """Upgrade while the old one works, both at once, way back, upgrade again; no event ever seen changes."""
    other_host = another_host(data_dir)
    with start_service(data_dir, env=old) as before:
        assert release_of(before) == PREVIOUS != retoma.__version__
        api = Api(before)
        whole = text_of(api.wait_finished(api.create()))
        first = api.create_here()
        with start_service(other_host, env=SLOW) as after:  # it migrates the store under the other's feet
            assert release_of(after) == retoma.__version__
            api.wait_tokens(first, 20)
            second = api.create(key="from-the-old-release")
            api.attach(after)
            assert api.create(key="from-the-old-release") == second
            third = api.create_here()
            before.kill(engines_too=True)
            assert text_of(api.wait_finished(first)) == whole, "taken over by this release"
            with start_service(data_dir, env=old) as again:  # the way back
                api.follow(first)
                api.follow(second)
                api.wait_tokens(third, 1)
                after.kill(engines_too=True)
                api.attach(again)
                assert text_of(api.wait_finished(third)) == whole, "taken over by the previous release"
                fourth = api.create()
                for task in (first, second, third):
                    api.follow(task)  # the same events from the other release, byte for byte, or it raises
                api.wait_tokens(fourth, 5)
                again.kill(engines_too=True)
        with start_service(other_host, env=SLOW) as finally_:
            api.attach(finally_)
            assert text_of(api.wait_finished(fourth)) == whole
            for task in (first, second, third, fourth):
                assert api.follow(task) == len(api.events(task)) - 1
            assert finally_.stop() == 0
    assert_store_is_sound(data_dir)


@pytest.mark.requirement("S-004", "S-004b")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("dies", ["previous", "this"])
def test_the_crash_image_of_one_release_is_recovered_by_the_other(
    dies: str, tmp_path: Path, old: dict[str, str]
) -> None:
    killed, heir = (old, SLOW) if dies == "previous" else (SLOW, old)
    data_dir, image = tmp_path / "data", tmp_path / "image"
    with start_service(data_dir, env=killed) as service:
        api = Api(service)
        policies = {policy: api.create(on_restart=policy) for policy in ("resume", "retry", "fail")}
        done = api.wait_finished(api.create("short", max_output_tokens=3))
        started = api.create(on_restart="resume")
        api.wait_tokens(started, 10)
        service.kill(engines_too=True)
        shutil.copytree(data_dir, image)
    with start_service(image, env=heir) as service:
        api.attach(service)
        whole = text_of(api.wait_finished(api.create()))
        assert api.get(done["id"])["output"] == done["output"]
        for policy, task in policies.items():
            ended = api.wait_finished(task)
            if ended["task"]["restarts"] and policy == "fail":
                assert ended["error"]["code"] == "server_restarted"
            else:
                assert text_of(ended) == whole
        assert text_of(api.wait_finished(started)) == whole
        assert service.stop() == 0
    assert_store_is_sound(image)


@pytest.mark.requirement("S-004", "S-004b")
def test_the_previous_release_refuses_a_store_that_it_must_not_write_and_changes_no_byte(
    tmp_path: Path, old: dict[str, str]
) -> None:
    with start_service(tmp_path / "data", env=SLOW) as service:
        assert service.stop() == 0
    connection = apsw.Connection(str(tmp_path / "data" / "retoma.db"))
    connection.execute("UPDATE migrations SET oldest_reader = 2, oldest_writer = 2 WHERE version = 2")
    connection.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").glob("retoma.db*")}
    with launch_service(tmp_path / "data", env=old) as refused:
        assert refused.wait_exit() == REFUSED
        assert "needs a newer Retoma" in refused.log
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").glob("retoma.db*")} == before
