"""The service's stored settings under a version, and models that are registered and removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.http.conftest import store_of
from tests.http.service import NATURAL_TOKENS, Server, events_of, running, submit

PATH = "/v1/service"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service") / "data"


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[Server]:
    with running(data_dir, store=store_of(request)) as started:
        yield started


def version_of(api: httpx.Client) -> str:
    return api.get(PATH).headers["etag"]


def change(api: httpx.Client, version: str | None, **changes: object) -> httpx.Response:
    return api.patch(PATH, json=changes, headers={} if version is None else {"If-Match": version})


def code_of(reply: httpx.Response) -> tuple[int, str, str | None]:
    return reply.status_code, reply.json()["error"]["code"], reply.json()["error"]["param"]


class TestService:
    def test_identity_and_settings_are_told_with_their_version(self, api: httpx.Client, server: Server) -> None:
        found = api.get(PATH)
        body = found.json()
        assert body["id"].startswith("svc_")
        assert body["instance"] == server.instance.instance_id
        assert (found.headers["etag"], body["stored"]) == (f'"{body["version"]}"', {})
        kept = {"retention_days": 30, "unstored_minutes": 60, "snapshot_hours": 0}
        assert body["settings"] == {"name": None, "queue_max": 10_000, **kept}

    @pytest.mark.requirement("S-003")
    def test_a_change_by_an_old_version_is_refused_and_changes_nothing(self, api: httpx.Client) -> None:
        old = version_of(api)
        changed = change(api, old, name="mine", retention_days=2.5)
        assert (changed.status_code, changed.json()["stored"]) == (200, {"name": "mine", "retention_days": 2.5})
        assert changed.headers["etag"] != old
        assert code_of(change(api, old, name="theirs"))[:2] == (412, "stale_version")
        assert api.get(PATH).content == changed.content
        taken_away = change(api, changed.headers["etag"], name=None, retention_days=None)
        assert taken_away.json()["stored"] == {}
        assert taken_away.json()["settings"]["retention_days"] == 30

    @pytest.mark.requirement("S-003")
    def test_of_many_changes_at_one_version_exactly_one_is_made(self, api: httpx.Client, server: Server) -> None:
        version = version_of(api)

        def send(number: int) -> int:
            with server.http() as client:
                return change(client, version, name=f"n{number}").status_code

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(send, range(8))) == [200] + [412] * 7

    def test_a_change_must_say_what_it_goes_by(self, api: httpx.Client) -> None:
        assert code_of(change(api, None, name="x")) == (400, "invalid_request", "If-Match")
        assert code_of(change(api, "old", name="x")) == (400, "invalid_request", "If-Match")
        assert change(api, "*", name="x").status_code == 200

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("nonsense", 1),
            ("queue_max", 0),
            ("queue_max", 1.5),
            ("queue_max", True),
            ("queue_max", "7"),
            ("retention_days", -1),
            ("retention_days", 1e300),
            ("unstored_minutes", [1]),
            ("name", ""),
            ("name", "a\nb"),
            ("name", "x" * 101),
            ("name", 7),
        ],
    )
    def test_what_can_not_be_stored_is_refused_by_its_name(self, api: httpx.Client, name: str, value: object) -> None:
        before = api.get(PATH).content
        assert code_of(change(api, "*", **{name: value})) == (400, "invalid_request", name)
        assert api.get(PATH).content == before

    def test_a_client_without_the_scope_may_not_even_look(self, server: Server) -> None:
        with server.http(server.add_client("curious")) as client:
            assert client.get(PATH).status_code == 403
            assert change(client, "*", name="x").status_code == 403

    def test_the_stored_bound_of_the_queue_is_in_force_at_once(self, api: httpx.Client) -> None:
        # Four are worked on, one waits; long ones, so that none ends meanwhile.
        made = [submit(api, max_output_tokens=int(NATURAL_TOKENS)) for _ in range(4)]
        for one in made:
            with api.stream("GET", f"/v1/responses/{one['id']}?stream=true") as reply:
                assert any("output_text.delta" in line for line in reply.iter_lines())
        assert change(api, "*", queue_max=1).status_code == 200
        made.append(submit(api))
        refused = api.post("/v1/responses", json={"model": "scripted", "input": "x", "background": True})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert change(api, "*", queue_max=None).status_code == 200
        made.append(submit(api))
        for one in made:
            api.post(f"/v1/responses/{one['id']}/cancel")

    @pytest.mark.requirement("P-11.2-retain")
    def test_the_stored_retention_is_what_housekeeping_goes_by(self, api: httpx.Client, server: Server) -> None:
        made = submit(api, store=False, max_output_tokens=1)
        events_of(api, made["id"])
        server.on_loop(server.instance.housekeep())
        assert api.get(f"/v1/responses/{made['id']}").status_code == 200
        assert change(api, "*", unstored_minutes=0).status_code == 200
        server.on_loop(server.instance.housekeep())
        assert api.get(f"/v1/responses/{made['id']}").status_code == 404
        assert change(api, "*", unstored_minutes=None).status_code == 200


class TestModels:
    @pytest.fixture
    def incoming(self, data_dir: Path, gguf_file: Path) -> Path:
        folder = data_dir / "models" / "incoming"
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(gguf_file, folder / "Tiny.gguf"))

    def test_a_file_of_the_import_folder_is_registered_and_removed(self, api: httpx.Client, incoming: Path) -> None:
        made = api.post("/v1/models", json={"file": incoming.name})
        assert (made.status_code, made.json()["id"], made.headers["location"]) == (201, "tiny", "/v1/models/tiny")
        assert not incoming.exists()
        found = api.get("/v1/models/tiny")
        assert (found.json(), found.headers["etag"]) == (made.json(), made.headers["etag"])
        assert found.json()["size"] > 0
        gone = api.delete("/v1/models/tiny", headers={"If-Match": found.headers["etag"]})
        assert gone.json() == {"id": "tiny", "object": "model", "deleted": True}
        assert [api.get("/v1/models/tiny").status_code, api.delete("/v1/models/tiny").status_code] == [404, 404]

    @pytest.mark.requirement("S-003")
    def test_the_same_content_again_is_no_change_and_other_content_is_a_conflict(
        self, api: httpx.Client, incoming: Path, gguf_file: Path
    ) -> None:
        made = api.post("/v1/models", json={"file": incoming.name, "name": "a/b"})
        shutil.copy(gguf_file, incoming)
        again = api.post("/v1/models", json={"file": incoming.name, "name": "a/b"})
        assert (again.status_code, again.content) == (201, made.content)
        incoming.write_bytes(gguf_file.read_bytes() + b"more")
        other = api.post("/v1/models", json={"file": incoming.name, "name": "a/b"})
        assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
        assert incoming.exists(), "what was refused stays where it was"
        assert code_of(api.delete("/v1/models/a/b", headers={"If-Match": '"99"'}))[:2] == (412, "stale_version")
        assert api.delete("/v1/models/a/b").status_code == 200

    @pytest.mark.parametrize("file", ["../admin.token", "..", "", "a/b", "missing.gguf", "x\0y", 7, None, ".hidden"])
    def test_only_a_file_in_the_import_folder_can_be_named(
        self, api: httpx.Client, incoming: Path, file: object
    ) -> None:
        (incoming.parent / ".hidden").write_bytes(b"GGUF")
        assert code_of(api.post("/v1/models", json={"file": file})) == (400, "invalid_request", "file")

    def test_a_link_out_of_the_import_folder_is_refused(self, api: httpx.Client, incoming: Path) -> None:
        link = incoming.parent / "link.gguf"
        link.unlink(missing_ok=True)
        link.symlink_to("/etc/hostname")
        assert code_of(api.post("/v1/models", json={"file": "link.gguf"})) == (400, "invalid_request", "file")

    @pytest.mark.parametrize("body", [{"name": ""}, {"name": "a b"}, {"name": "x" * 201}, {"name": 7}, {"nonsense": 1}])
    def test_a_name_that_can_not_be_one_is_refused(
        self, api: httpx.Client, incoming: Path, body: dict[str, object]
    ) -> None:
        param = next(iter(body))
        assert code_of(api.post("/v1/models", json={"file": incoming.name, **body})) == (400, "invalid_request", param)
        assert code_of(api.post("/v1/models", json={"file": incoming.name, "name": "scripted"}))[0] == 400
        assert incoming.exists()

    def test_a_file_that_is_no_model_is_refused(self, api: httpx.Client, incoming: Path) -> None:
        incoming.write_bytes(b"GGUF and no more")
        refused = api.post("/v1/models", json={"file": incoming.name})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")

    def test_a_client_without_the_scope_changes_no_model(self, server: Server) -> None:
        with server.http(server.add_client("reader")) as client:
            assert client.post("/v1/models", json={"file": "x"}).status_code == 403
            assert client.delete("/v1/models/scripted").status_code == 403

    def test_the_tests_own_model_is_not_removed(self, api: httpx.Client) -> None:
        assert api.delete("/v1/models/scripted").status_code == 409
