"""The Response object, with every field that OpenAI's type and the Open Responses schema ask for (contract §2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Fields of the request that the response repeats, with the value shown when the request did not name one.
ECHOED: dict[str, Any] = {
    "model": None,
    "previous_response_id": None,
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "top_p": 1.0,
    "temperature": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "reasoning": {"effort": None, "summary": None},
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": True,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "user": None,
    "prompt_cache_key": None,
}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one response."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    def wire(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


@dataclass(frozen=True, slots=True)
class Ending:
    """How a response ends. `code` is an error code of a failed task; `reason` why it is incomplete."""

    status: str
    output: list[dict[str, Any]]
    usage: Usage | None = None
    reason: str | None = None
    code: str | None = None
    message: str = ""


def build_response(
    response_id: str,
    request: dict[str, Any],
    task: dict[str, Any],
    *,
    status: str,
    created_at_ms: int,
    completed_at_ms: int | None = None,
    ending: Ending | None = None,
) -> dict[str, Any]:
    """The object as it goes to a client. `request` holds the fields that are echoed."""
    reason = ending.reason if ending else None
    code = ending.code if ending else None
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at_ms // 1000,
        "completed_at": completed_at_ms // 1000 if completed_at_ms is not None and status == "completed" else None,
        "status": status,
        "incomplete_details": {"reason": reason} if reason else None,
        "error": {"code": code, "message": ending.message if ending else ""} if code else None,
        "output": ending.output if ending else [],
        "usage": ending.usage.wire() if ending and ending.usage else None,
        **{name: request.get(name, default) for name, default in ECHOED.items()},
        "task": task,
    }
