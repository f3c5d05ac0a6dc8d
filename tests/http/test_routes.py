"""The other routes: cancel and delete under a version, lists, health, and the API's own description."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from retoma.http.guard import SCOPES
from retoma.runtime.service import STOPPING
from tests.http.service import Server, events_of, parse_sse, raw_request, submit, wait_state


class TestCancel:
    @pytest.mark.requirement("P-11.2-cancel")
    def test_a_running_response_is_cancelled_and_stays_so(self, api: httpx.Client) -> None:
        made = submit(api, max_output_tokens=None)
        wait_state(api, made["id"], "running")
        first = api.post(f"/v1/responses/{made['id']}/cancel")
        assert (first.status_code, first.json()["status"]) == (200, "cancelled")
        assert first.headers["etag"] == f'"{first.json()["task"]["version"]}"'
        again = api.post(f"/v1/responses/{made['id']}/cancel")
        assert (again.status_code, again.content) == (200, first.content)
        assert events_of(api, made["id"])[-1].type == "response.cancelled"

    def test_a_finished_response_is_returned_unchanged(self, api: httpx.Client) -> None:
        made = submit(api)
        events_of(api, made["id"])
        before = api.get(f"/v1/responses/{made['id']}")
        assert api.post(f"/v1/responses/{made['id']}/cancel").content == before.content

    def test_a_foreground_response_is_refused(self, api: httpx.Client) -> None:
        made = api.post("/v1/responses", json={"model": "scripted", "input": "x", "max_output_tokens": 1}).json()
        reply = api.post(f"/v1/responses/{made['id']}/cancel")
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")

    @pytest.mark.requirement("S-003", "S-003b", "S-003c")
    def test_an_old_version_changes_nothing(self, api: httpx.Client) -> None:
        made = submit(api, max_output_tokens=None)
        running = wait_state(api, made["id"], "running")
        path = f"/v1/responses/{made['id']}"
        stale = api.post(f"{path}/cancel", headers={"If-Match": '"1"'})
        assert (stale.status_code, stale.json()["error"]["code"]) == (412, "stale_version")
        assert api.get(path).json()["status"] == "in_progress"
        current = str(running["task"]["version"])
        assert api.post(f"{path}/cancel", headers={"If-Match": current}).json()["status"] == "cancelled"

    @pytest.mark.requirement("S-003")
    def test_of_many_cancels_at_once_all_get_the_same_end(self, api: httpx.Client, server: Server) -> None:
        made = submit(api, max_output_tokens=None)
        wait_state(api, made["id"], "running")

        def send(_: int) -> bytes:
            with server.http() as client:
                return client.post(f"/v1/responses/{made['id']}/cancel").content

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(send, range(8)))) == 1
        assert [event.type for event in events_of(api, made["id"])].count("response.cancelled") == 1


class TestDelete:
    @pytest.mark.requirement("S-003c")
    def test_an_unfinished_response_is_refused(self, api: httpx.Client) -> None:
        made = submit(api, max_output_tokens=None)
        path = f"/v1/responses/{made['id']}"
        reply = api.delete(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "task_unfinished")
        assert reply.json()["error"]["type"] == "conflict_error"
        api.post(f"{path}/cancel")
        assert api.delete(path, headers={"If-Match": '"1"'}).status_code == 412
        gone = api.delete(path, headers={"If-Match": "*"})
        assert gone.json() == {"id": made["id"], "object": "response", "deleted": True}
        assert [api.get(path).status_code, api.delete(path).status_code] == [404, 404]

    def test_the_etag_of_the_finished_response_allows_it(self, api: httpx.Client) -> None:
        made = submit(api)
        events_of(api, made["id"])
        path = f"/v1/responses/{made['id']}"
        assert api.delete(path, headers={"If-Match": api.get(path).headers["etag"]}).status_code == 200


class TestInputItems:
    def test_items_come_in_one_form(self, api: httpx.Client) -> None:
        items = [
            {"role": "system", "content": "s"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}], "id": "msg_mine"},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "same id", "id": "msg_mine"},
        ]
        page = api.get(f"/v1/responses/{submit(api, input=items)['id']}/input_items?order=asc").json()
        assert page["object"] == "list"
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        assert not page["has_more"]
        assert [(item["type"], item["role"], item["status"]) for item in page["data"]] == [
            ("message", role, "completed") for role in ("system", "user", "assistant", "user")
        ]
        assert page["data"][1] == items[1] | {"status": "completed"}
        assert page["data"][2]["content"] == [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]
        assert len({item["id"] for item in page["data"]}) == 4

    def test_pages_follow_each_other_newest_first(self, api: httpx.Client) -> None:
        made = submit(api, input=[{"role": "user", "content": str(n)} for n in range(45)])
        texts: list[str] = []
        after, more = "", True
        while more:
            query = {"after": after} if after else {}
            page = api.get(f"/v1/responses/{made['id']}/input_items", params=query).json()
            texts += [item["content"][0]["text"] for item in page["data"]]
            after, more = page["last_id"], page["has_more"]
        assert texts == [str(n) for n in reversed(range(45))]


class TestTasks:
    def test_pages_of_tasks_miss_none_and_repeat_none(self, server: Server) -> None:
        with server.http(server.add_client("lister")) as client:
            made = [submit(client, max_output_tokens=1)["id"] for _ in range(5)]
            for response_id in made:
                events_of(client, response_id)
            seen: list[str] = []
            after, more = "", True
            while more:
                page = client.get("/v1/tasks", params={"after": after, "limit": 2, "state": "completed"}).json()
                seen += [task["id"] for task in page["data"]]
                after, more = page["last_id"], page["has_more"]
            assert seen == made[::-1]
            assert client.get("/v1/tasks?state=failed").json()["data"] == []

    def test_a_task_tells_its_state_and_not_its_text(self, api: httpx.Client) -> None:
        made = submit(api, input="a secret")
        events_of(api, made["id"])
        reply = api.get(f"/v1/tasks/{made['id']}")
        task = reply.json()
        assert (task["object"], task["state"], task["background"], task["queue_position"]) == (
            "task",
            "completed",
            True,
            None,
        )
        assert reply.headers["etag"] == f'"{task["version"]}"'
        assert "secret" not in reply.text

    def test_pages_of_events_add_up_to_the_stream(self, api: httpx.Client) -> None:
        made = submit(api, max_output_tokens=20)
        whole = events_of(api, made["id"])
        found = []
        query: dict[str, int] = {"limit": 4}
        while True:
            page = api.get(f"/v1/tasks/{made['id']}/events", params=query).json()
            found += page["data"]
            assert page["complete"] != page["has_more"]
            if page["complete"]:
                break
            query["after"] = page["last_sequence_number"]
        assert found == [event.data for event in whole]
        beyond = api.get(f"/v1/tasks/{made['id']}/events", params={"after": 10**6}).json()
        assert (beyond["data"], beyond["has_more"], beyond["complete"]) == ([], False, True)


def test_a_reader_that_does_not_read_holds_up_nobody(api: httpx.Client, server: Server) -> None:
    made = submit(api, instructions="x" * 4_000_000)  # each event that carries the response is larger than any buffer
    with server.http() as client, client.stream("GET", f"/v1/responses/{made['id']}?stream=true") as stuck:
        # So large a prompt fails, which is an end like any other.
        assert events_of(api, made["id"])[-1].type == "response.failed"
        assert parse_sse(stuck.read())[-1].type == "response.failed"


def test_models_are_shown_with_their_digest(api: httpx.Client) -> None:
    listed = api.get("/v1/models").json()
    model = next(model for model in listed["data"] if model["id"] == "scripted")
    assert listed["object"] == "list"
    assert {"id", "object", "created", "owned_by", "digest", "size", "state"} <= set(model)
    assert api.get("/v1/models/scripted").json() == model
    assert api.get("/v1/models/a/b").json()["error"]["code"] == "not_found"


def test_health_is_told_without_a_token(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with server.http(token=None) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").status_code == 200
        monkeypatch.setattr(server.instance, "not_ready", lambda: "disk I/O error in some-folder/retoma.db")
        reply = client.get("/readyz")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        said = reply.json()["error"]["message"]
        assert "store" in said
        assert "retoma.db" not in said, "a stranger hears where the store is"
        monkeypatch.setattr(server.instance, "not_ready", lambda: STOPPING)
        assert client.get("/readyz").json()["error"]["message"] == STOPPING
        assert client.get("/healthz").status_code == 200


def test_the_description_names_every_route_and_the_page_loads_nothing_from_elsewhere(server: Server) -> None:
    with server.http(token=None) as client:
        document = client.get("/openapi.json").json()
        page = client.get("/docs")
    described = {(m.upper(), path) for path, methods in document["paths"].items() for m in methods}
    expected = {
        (m, path.replace(":path", "")) for m, path in SCOPES if "dashboard" not in path and path not in {"/", "/docs"}
    }
    assert described == expected
    assert "max_output_tokens" in document["components"]["schemas"]["CreateResponse"]["properties"]
    assert page.headers["content-type"].startswith("text/html")
    assert "//" not in page.text.replace("<!doctype", "")


def test_a_request_without_a_host_is_refused(server: Server) -> None:
    assert b" 400 " in raw_request(server, b"GET /healthz HTTP/1.0\r\n\r\n").split(b"\r\n")[0]
