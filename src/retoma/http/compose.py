"""A request becomes the command that stores it: the model, the whole conversation, all that a later attempt needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retoma.core.events import encode_json
from retoma.core.response import ECHOED
from retoma.core.task import OnRestart
from retoma.errors import InvalidRequest, ModelNotFound, NotFound, TaskUnfinished, TooLarge
from retoma.http.guard import Caller
from retoma.http.items import Input, ReadInput
from retoma.http.query import response_id_of
from retoma.http.webhooks import webhook_url
from retoma.http.wire import CreateResponse, TextFormat, TextOptions
from retoma.limits import INPUT_ITEMS_MAX, REQUEST_BYTES_MAX
from retoma.runtime.service import ModelInfo
from retoma.transactions import read
from retoma.transactions.accept import Accept, IdempotencyKey
from retoma.transactions.read import SeenResponse

_SEED_DIGITS = 8
_FREE_TEXT = {"format": {"type": "text"}}


async def compose(caller: Caller, wanted: CreateResponse, read_input: ReadInput, key: IdempotencyKey | None) -> Accept:
    """The command; raises what tells the client what is wrong, with nothing stored."""
    service = caller.service
    given = read_input(lambda: service.ids.new("msg"))
    model = await _resolve_model(caller, wanted.model)
    earlier = await _earlier_messages(caller, wanted.previous_response_id)
    task_id = service.ids.new("resp")
    return Accept(
        task_id=task_id,
        client_id=caller.client.id,
        model=model.name,
        background=bool(wanted.background),
        stored=wanted.store is not False,
        on_restart=on_restart_of(wanted),
        request=_request(wanted, model, given, earlier, _seed(wanted, task_id)),
        instance_id=service.instance_id,
        now_ms=service.clock.wall_ms(),
        op_id=service.ids.op_id(),
        key=key,
        queue_max=caller.context.settings.queue_max,
        webhook=webhook_url(caller, wanted),
    )


def on_restart_of(wanted: CreateResponse) -> OnRestart:
    """The policy that was asked for, or the default: `resume` in the background, else `fail`."""
    return wanted.on_restart or (OnRestart.RESUME if wanted.background else OnRestart.FAIL)


def _seed(wanted: CreateResponse, task_id: str) -> int:
    """Without one in the request, the random end of the id: every attempt of this task has the same."""
    return int(task_id[-_SEED_DIGITS:], 16) if wanted.seed is None else wanted.seed


async def _resolve_model(caller: Caller, name: str | None) -> ModelInfo:
    try:
        return await caller.service.resolve_model(name)
    except ModelNotFound as error:
        error.param = "model"
        raise


async def _earlier_messages(caller: Caller, response_id: str | None) -> list[dict[str, str]]:
    """The conversation up to and with the earlier response, without its instructions, which are not inherited."""
    if response_id is None:
        return []
    param = "previous_response_id"
    wanted_id = response_id_of(response_id, param)
    try:
        seen = await caller.service.read(lambda tx: read.read_response(tx, wanted_id, caller.sees))
    except NotFound as error:
        error.param = param
        raise
    if not seen.task.state.finished:
        raise TaskUnfinished(f"{wanted_id} has not ended yet; wait for its end", param=param)
    if seen.body["status"] not in {"completed", "incomplete"}:
        raise InvalidRequest(f"{wanted_id} is {seen.body['status']}, so nothing can follow it", param=param)
    return _messages_of(seen)


def _messages_of(seen: SeenResponse) -> list[dict[str, str]]:
    request = seen.task.request_fields
    messages = request["messages"]
    if request["echo"]["instructions"]:
        messages = messages[1:]
    texts = [
        part["text"]
        for item in seen.body["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    ]
    return [*messages, {"role": "assistant", "content": "".join(texts)}]


def _request(wanted: CreateResponse, model: ModelInfo, given: Input, earlier: list[dict[str, str]], seed: int) -> str:
    """The JSON text that the task keeps; raises InvalidRequest or TooLarge for a conversation beyond all bounds."""
    messages = [*earlier, *given.messages]
    if wanted.instructions:
        messages.insert(0, {"role": "system", "content": wanted.instructions})
    if len(messages) > INPUT_ITEMS_MAX:
        raise InvalidRequest(f"a conversation may have {INPUT_ITEMS_MAX} messages at most", param=given.field)
    if sum(len(message["content"]) for message in messages) > REQUEST_BYTES_MAX:
        raise TooLarge(f"a conversation may have {REQUEST_BYTES_MAX} characters at most", param=given.field)
    text = _text(wanted.text or TextOptions())
    return encode_json(
        {
            "echo": _echo(wanted, model, text),
            "input": given.items,
            "messages": messages,
            "generation": {
                "max_output_tokens": wanted.max_output_tokens,
                "temperature": _or(wanted.temperature, 1.0),
                "top_p": _or(wanted.top_p, 1.0),
                "seed": seed,
                "stop": wanted.stop or [],
                "truncation": wanted.truncation or "disabled",
                "format": None if text == _FREE_TEXT else text["format"],
            },
        }
    )


def _echo(wanted: CreateResponse, model: ModelInfo, text: dict[str, Any]) -> dict[str, Any]:
    """What the response repeats. Defaults are written down too: the ones of a later release may be others."""
    named: Mapping[str, Any] = {name: value for name in ECHOED if (value := getattr(wanted, name, None)) is not None}
    fixed = {"service_tier": "default", "reasoning": ECHOED["reasoning"]}
    return {**ECHOED, **named, **fixed, "model": model.name, "text": text}


def _text(options: TextOptions) -> dict[str, Any]:
    chosen = options.format or TextFormat(type="text")
    return {"format": chosen.model_dump(by_alias=True, exclude_none=True)}


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
