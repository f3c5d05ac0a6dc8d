"""`hf:OWNER/REPO/FILE.gguf[@REVISION]`: a model file of the Hugging Face Hub, or of what HF_ENDPOINT names.

The package `huggingface_hub` says what there is, and with which token; the bytes are fetched by `blobs/download.py`,
because its own download begins anew after a kill. Nothing is put into its cache.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from retoma import __version__
from retoma.blobs.download import Remote
from retoma.cli.failures import OperationFailed
from retoma.cli.gguf_file import HUB as PREFIX
from retoma.cli.gguf_file import shorten
from retoma.cli.printing import note, plain, size_of
from retoma.errors import InvalidRequest, Refused, RetomaError

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_SPLIT = re.compile(r"-\d{5}-of-(\d{5})\.gguf$", re.IGNORECASE)
_TIMEOUT_S = 20.0
_LISTED_MAX = 50


@dataclass(frozen=True, slots=True)
class Named:
    """What a person has written. Without a file it is the only one of the repository."""

    repo: str
    file: str | None
    revision: str | None


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file that is there; `source` names it with its commit."""

    remote: Remote
    source: str
    name: str


def parse(source: str) -> Named:
    """Raises InvalidRequest for what names no file of a repository."""
    place, _, revision = source.removeprefix(PREFIX).partition("@")
    parts = place.strip("/").split("/")
    if len(parts) < 2 or not all(parts) or (not revision and "@" in source):  # noqa: PLR2004 - owner and repository
        raise InvalidRequest(
            f"{shorten(source)} names no file; write hf:OWNER/REPO/FILE.gguf or hf:OWNER/REPO, and @REVISION if need be"
        )
    file = "/".join(parts[2:]) or None
    if file is not None and not file.lower().endswith(".gguf"):
        raise InvalidRequest(f"{shorten(file)} is no .gguf file; name a model in the GGUF format")
    if file is not None and (split := _SPLIT.search(file)):
        raise InvalidRequest(
            f"{shorten(file)} is one of {int(split[1])} parts of a model; choose a whole one, or fetch all parts "
            "and put them together with `llama-gguf-split --merge`"
        )
    return Named("/".join(parts[:2]), file, revision or None)


def find(source: str) -> HubFile:
    """The file on the hub; raises InvalidRequest, Refused or OperationFailed with what to do."""
    named = parse(source)
    hub = _library()
    try:
        return _find(hub, named)
    except RetomaError:
        raise
    except Exception as error:
        raise _told(hub, error, named) from error


def _library() -> Any:
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        importlib.import_module("huggingface_hub.errors")
    except ImportError as missing:
        raise Refused("downloading from a hub needs the extra: pip install 'retoma[hub]'") from missing
    return hub


def _find(hub: Any, named: Named) -> HubFile:
    file = named.file or _only_file(hub, named)
    agent = {"library_name": "retoma", "library_version": __version__}
    url = hub.hf_hub_url(named.repo, file, revision=named.revision)
    seen = hub.get_hf_file_metadata(url, timeout=_TIMEOUT_S, **agent)
    if seen.size is None:
        raise OperationFailed(f"the hub does not say how large {file} is; try again later")
    # From here on the commit, so that all of it comes from one version whatever is pushed meanwhile.
    at = hub.hf_hub_url(named.repo, file, revision=seen.commit_hash or named.revision)
    etag = seen.etag or ""
    remote = Remote(
        at,
        hub.utils.build_hf_headers(**agent),
        seen.size,
        sha256=etag if _SHA256.fullmatch(etag) else None,
        git_sha1=etag if _SHA1.fullmatch(etag) else None,
    )
    revision = seen.commit_hash or named.revision
    source = f"{PREFIX}{named.repo}/{file}" + (f"@{revision}" if revision else "")
    return HubFile(remote, source, PurePosixPath(file).stem.lower())


def _only_file(hub: Any, named: Named) -> str:
    api = hub.HfApi(library_name="retoma", library_version=__version__)
    info = api.model_info(named.repo, revision=named.revision, files_metadata=True, timeout=_TIMEOUT_S)
    siblings: list[Any] = info.siblings or []
    sizes: dict[str, int] = {one.rfilename: one.size or 0 for one in siblings}
    found = sorted((file, size) for file, size in sizes.items() if file.lower().endswith(".gguf"))
    if len(found) == 1:
        return found[0][0]
    if not found:
        raise InvalidRequest(f"{named.repo} has no .gguf file; look for a repository with GGUF in its name")
    at = f"@{named.revision}" if named.revision else ""
    for file, size in found[:_LISTED_MAX]:
        note(plain(f"  hf:{named.repo}/{file}{at}  ({size_of(size)})"))
    more = f"the first {_LISTED_MAX} of them are listed above" if len(found) > _LISTED_MAX else "they are listed above"
    raise InvalidRequest(f"{named.repo} has {len(found)} .gguf files; name one of them: {more}")


def _told(hub: Any, error: Exception, named: Named) -> RetomaError:  # noqa: PLR0911 - one line a kind
    """What the hub's error means for who has typed the command."""
    errors = hub.errors
    place = hub.constants.ENDPOINT
    at = f" at {named.revision}" if named.revision else ""
    match error:
        case errors.GatedRepoError():
            return OperationFailed(
                f"{named.repo} is gated: accept its terms at {place}/{named.repo}, then set HF_TOKEN and try again"
            )
        case errors.RepositoryNotFoundError():
            return OperationFailed(
                f"{place} shows no repository {named.repo}; check the name, and set HF_TOKEN if it is a private one"
            )
        case errors.RevisionNotFoundError():
            return OperationFailed(f"{named.repo} has no revision {named.revision}; name a branch, a tag or a commit")
        case errors.EntryNotFoundError():
            return OperationFailed(
                f"{named.repo} has no file {named.file}{at}; `retoma models add hf:{named.repo}` lists those it has"
            )
        case errors.HFValidationError():
            return InvalidRequest(f"{shorten(named.repo)} can't be the name of a repository; write hf:OWNER/REPO")
        case errors.OfflineModeIsEnabled():
            return OperationFailed("HF_HUB_OFFLINE is set, so nothing is fetched; unset it and try again")
        case errors.HfHubHTTPError():
            return _of_status(error, place)
        case _ if type(error).__module__.startswith("httpx"):
            return OperationFailed(f"{place} can't be reached ({error}); check the connection, or HF_ENDPOINT")
        case _:
            return OperationFailed(f"{place} did not answer as a hub does: {shorten(str(error), 200)}")


def _of_status(error: Any, place: str) -> RetomaError:
    status = error.response.status_code
    if status in {401, 403}:
        return OperationFailed(f"{place} does not accept the token (status {status}); check HF_TOKEN")
    return OperationFailed(f"{place} answered with status {status}; try again later")
