"""The Response object has the fields and the types that clients were promised."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response

from retoma.core.output import Output
from retoma.core.response import Ending, Usage, build_response

# "Required by the Open Responses schema in every Response", in its order (docs: the API page).
REQUIRED = """
id object created_at completed_at status incomplete_details model previous_response_id instructions output error tools
tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs temperature
reasoning usage max_output_tokens max_tool_calls store background service_tier metadata safety_identifier
prompt_cache_key
"""

TASK = {"state": "queued", "on_restart": "resume", "attempt": 1, "version": 1, "restarts": []}


def items(status: str) -> list[dict[str, Any]]:
    output = Output()
    output.append("Hello", [1], "msg_1")
    return output.items(status)


ENDINGS = {
    "queued": None,
    "in_progress": Ending("in_progress", items("in_progress")),
    "completed": Ending("completed", items("completed"), Usage(3, 1, 2)),
    "incomplete": Ending("incomplete", items("incomplete"), Usage(3, 1), "max_output_tokens"),
    "failed": Ending("failed", [], code="server_restarted", message="the service was restarted"),
    "cancelled": Ending("cancelled", items("incomplete")),
}


def built(status: str) -> dict[str, Any]:
    finished = status in {"completed", "incomplete", "failed", "cancelled"}
    return build_response(
        "resp_1",
        {"model": "m", "temperature": 0.5},
        TASK,
        status=status,
        created_at_ms=1_700_000_000_999,
        completed_at_ms=1_700_000_005_000 if finished else None,
        ending=ENDINGS[status],
    )


@pytest.mark.parametrize("status", ENDINGS)
def test_a_response_has_every_required_field_an_older_one_and_one_extension(status: str) -> None:
    assert set(REQUIRED.split()) <= set(built(status))
    assert set(built(status)) - set(REQUIRED.split()) == {"task", "user"}


@pytest.mark.parametrize("status", ENDINGS)
def test_the_official_client_takes_a_response_and_gives_it_back_unchanged(status: str) -> None:
    response = built(status)
    # `error.code` is an open word here and a closed list there; everything else is checked strictly.
    error = response.pop("error")
    parsed = Response.model_validate({**response, "error": None})
    shown = parsed.model_dump(mode="json", exclude_unset=True)
    assert {name: shown[name] for name in response} == response
    assert parsed.output_text == ("Hello" if response["output"] else "")
    assert error == (
        None if status != "failed" else {"code": "server_restarted", "message": "the service was restarted"}
    )


def test_fields_of_the_request_are_repeated_and_the_others_have_their_defaults() -> None:
    response = built("queued")
    assert (response["model"], response["temperature"], response["top_p"]) == ("m", 0.5, 1.0)


@pytest.mark.parametrize(("status", "expected"), [("completed", 1_700_000_005), ("failed", None), ("queued", None)])
def test_instants_are_whole_seconds_and_only_a_completed_response_has_its_second(
    status: str, expected: int | None
) -> None:
    assert (built(status)["created_at"], built(status)["completed_at"]) == (1_700_000_000, expected)


def test_an_incomplete_response_says_why() -> None:
    assert built("incomplete")["incomplete_details"] == {"reason": "max_output_tokens"}
    assert built("completed")["incomplete_details"] is None


def test_usage_adds_up() -> None:
    assert built("completed")["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 4,
    }
