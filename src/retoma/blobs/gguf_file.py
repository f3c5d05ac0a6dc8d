"""A look into a model file before it is taken in: is it whole, and what does it say of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retoma.blobs.models import GGUF_MAGIC
from retoma.errors import InvalidRequest, ModelUnavailable


def read_facts(path: Path) -> dict[str, object]:
    """What the file says of itself; nothing when the package `gguf` isn't installed.

    Raises InvalidRequest for a file that is no GGUF or holds less than its table of tensors promises.
    """
    with path.open("rb") as file:
        if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise InvalidRequest(f"{path} is not a GGUF file; name a model in the GGUF format")
    try:
        import gguf  # noqa: PLC0415 - of the extra `llama`
    except ImportError:
        return {}
    reader_class: Any = gguf.GGUFReader
    try:
        reader = reader_class(path)
        _require_whole(reader, path)
        return _facts_of(reader)
    except InvalidRequest:
        raise
    except OSError as error:
        raise ModelUnavailable(f"{path} can't be read: {error.strerror}") from error
    except Exception as error:  # whatever a parser raises on bytes that are not there
        raise InvalidRequest(f"{path} is truncated or damaged; download it again") from error


def _require_whole(reader: Any, path: Path) -> None:
    parts = reader.get_field("split.count")
    if parts is not None and int(parts.contents()) > 1:
        raise InvalidRequest(
            f"{path} is one of {int(parts.contents())} parts of a model; put them together with "
            "`llama-gguf-split --merge` first"
        )


def _facts_of(reader: Any) -> dict[str, object]:
    facts: dict[str, object] = {"tensors": len(reader.tensors)}
    for name in ("general.architecture", "general.name", "general.size_label"):
        _add_fact(facts, reader, name)
    _add_fact(facts, reader, f"{facts.get('architecture')}.context_length")
    return facts


def _add_fact(facts: dict[str, object], reader: Any, name: str) -> None:
    field = reader.get_field(name)
    if field is not None:
        value = field.contents()
        facts[name.rpartition(".")[2]] = value if isinstance(value, str) else int(value)
