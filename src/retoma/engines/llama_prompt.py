"""Messages → token ids, through the model's own chat template.

The template is code from a downloaded file, so it runs in jinja2's sandbox, without a clock: a prompt must come out the
same in every attempt. What a user writes must not become a control token. Almost every prompt is tokenised as a whole,
as every other server does it; only if some message contains the text of a control token are template and contents
tokenised apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from retoma.errors import EngineError

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_FIXED_DATE = "01 Jan 2026"
_HOLE = re.compile("\ue000([0-9]+)\ue001")
Tokenize = Callable[[str, bool], list[int]]
"""(text, parse_special) → token ids"""


class ChatTemplate:
    """One model's template and its first and last token's text."""

    def __init__(self, source: str | None, bos: str, eos: str) -> None:
        """`source` None: ChatML. Raises EngineError if it is not a template."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        self._names: dict[str, Any] = {
            "bos_token": bos,
            "eos_token": eos,
            "raise_exception": _raise,
            "strftime_now": _fixed_date,
        }
        try:
            self._template = environment.from_string(source or CHATML)
        except TemplateError as error:
            raise EngineError(f"The model's chat template can't be read: {error}.") from error

    def tokens(self, messages: Sequence[Mapping[str, Any]], tokenize: Tokenize) -> list[int]:
        """The prompt; raises EngineError if the template refuses these messages."""
        plain = [{"role": _role(message), "content": _text(message)} for message in messages]
        text, plain = self._render_somehow(plain)
        contents = [message["content"] for message in plain]
        if all(tokenize(content, True) == tokenize(content, False) for content in contents):
            return tokenize(text, True)
        return self._tokens_apart(text, plain, tokenize)

    def _tokens_apart(self, text: str, messages: list[dict[str, str]], tokenize: Tokenize) -> list[int]:
        """Template with control tokens, contents without."""
        contents = [message["content"] for message in messages]
        holes = [message | {"content": f"\ue000{index}\ue001"} for index, message in enumerate(messages)]
        parts = _HOLE.split(self._render(holes))
        for choose in (str, str.strip):  # many templates strip the contents
            filled = [choose(contents[int(part)]) if i % 2 else part for i, part in enumerate(parts)]
            if "".join(filled) == text:
                return [token for i, part in enumerate(filled) for token in tokenize(part, i % 2 == 0)]
        raise EngineError(
            "A message contains the text of a control token, and this model's chat template can't keep it apart."
        )

    def _render_somehow(self, messages: list[dict[str, str]]) -> tuple[str, list[dict[str, str]]]:
        """As it is; if the template refuses, with instructions in the first user's message and neighbours joined."""
        try:
            return self._render(messages), messages
        except TemplateError as error:
            joined = _joined(messages)
            try:
                return self._render(joined), joined
            except TemplateError:
                raise EngineError(f"The model's chat template refuses these messages: {error}.") from error

    def _render(self, messages: list[dict[str, str]]) -> str:
        return self._template.render(messages=messages, add_generation_prompt=True, tools=None, **self._names)


def _role(message: Mapping[str, Any]) -> str:
    return "system" if message["role"] == "developer" else str(message["role"])


def _text(message: Mapping[str, Any]) -> str:
    return str(message["content"])


def _joined(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    joined: list[dict[str, str]] = []
    for message in messages:
        role = "user" if message["role"] == "system" else message["role"]
        if joined and joined[-1]["role"] == role:
            joined[-1] = {"role": role, "content": f"{joined[-1]['content']}\n\n{message['content']}"}
        else:
            joined.append({"role": role, "content": message["content"]})
    return joined


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _fixed_date(_format: str) -> str:
    return _FIXED_DATE


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
