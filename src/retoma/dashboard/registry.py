"""Models as the operator sees them: what the registry and the files themselves say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from retoma.dashboard.words import number
from retoma.http.guard import Caller
from retoma.runtime.service import ModelInfo

# Facts of the file and of the engine's self-test, in the order in which they are shown.
_FACTS = (
    ("architecture", "Architecture"),
    ("size_label", "Parameters"),
    ("quantization", "Quantisation"),
    ("context_length", "Context length"),
    ("tensors", "Tensors"),
)
_DESCRIBED = (
    ("model", "Kind and quantisation"),
    ("trained_context_tokens", "Trained context"),
    ("vocabulary", "Vocabulary"),
    ("library", "Library"),
)
_COUNTED = {"context_length": " tokens", "trained_context_tokens": " tokens", "vocabulary": " tokens", "tensors": ""}


@dataclass(frozen=True, slots=True)
class SeenModel:
    """A model and its facts as pairs of words. `restores`: what the self-test said of snapshots; empty if not run."""

    model: ModelInfo
    facts: list[tuple[str, str]]
    restores: str


async def see_models(caller: Caller) -> list[SeenModel]:
    """Every model, by name."""
    return [_seen(model) for model in await caller.service.models()]


def _seen(model: ModelInfo) -> SeenModel:
    described = _fields(model.facts.get("description"))
    facts = [(label, _shown(name, model.facts[name])) for name, label in _FACTS if name in model.facts]
    if described.get("trained_context_tokens") == model.facts.get("context_length"):
        described.pop("trained_context_tokens", None)
    facts += [(label, _shown(name, described[name])) for name, label in _DESCRIBED if name in described]
    return SeenModel(model, facts, _restores(_fields(model.facts.get("self_test"))))


def _fields(value: object) -> dict[str, Any]:
    return dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else {}


def _shown(name: str, value: object) -> str:
    if isinstance(value, int) and name in _COUNTED:
        return number(value) + _COUNTED[name]
    return str(value)


def _restores(test: dict[str, Any]) -> str:
    if not test:
        return ""
    if test.get("exact_restore"):
        return "Snapshots restore exactly: a text goes on from one, token for token."
    return "Snapshots don't restore exactly here, so a text is continued by decoding its tokens again."
