"""Settings: a flag, else `RETOMA_<NAME>`, else `retoma.toml` in the data directory, else the default.

Every setting is a field below with its unit and its meaning; `retoma settings` prints them with where each came from.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import platformdirs

from retoma.errors import Refused

_PREFIX = "RETOMA_"
_POSTGRES = ("postgresql://", "postgres://")
# Read by other parts of Retoma, and no settings of a service.
_OTHER_VARIABLES = {"RETOMA_FAILPOINT", "RETOMA_URL", "RETOMA_TOKEN", "RETOMA_SCRIPTED_TOKEN_MS"}
_NOT_NEGATIVE = (
    "port",
    "workers",
    "threads",
    "retention_days",
    "unstored_minutes",
    "snapshot_hours",
    "idempotency_hours",
    "models_loaded",
    "snapshot_every_tokens",
    "output_every_ms",
    "grace_s",
    "webhook_days",
)
_LEASE_S_MIN = 1.0
_WEBHOOK_TIMEOUT_S = (0.1, 600.0)
_SWITCH_PREFIXES = ("RETOMA_SCRIPTED_", "RETOMA_TEST_")
# Up to the last @: a password that should have been percent-encoded must not show either.
_PASSWORD_OF_USER = re.compile(r"(?<=://)([^:@/?]*):.*@", re.DOTALL)
_PASSWORD_PARAMETER = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)


def _setting(default: Any, unit: str, meaning: str, *, shown: bool = True) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning}, repr=shown)


def without_password(url: str) -> str:
    """A store's URL as people and logs may see it."""
    return _PASSWORD_OF_USER.sub(r"\1:***@", _PASSWORD_PARAMETER.sub(r"\1***", url))


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one instance."""

    data_dir: Path = _setting(Path(), "path", "where the store, the models and the snapshots live")
    store: str = _setting("", "URL", "sqlite:///PATH or postgresql://…; empty: retoma.db in the data dir", shown=False)
    host: str = _setting("127.0.0.1", "address", "the address to listen on")
    port: int = _setting(8642, "port", "the port to listen on; 0 picks a free one")
    ready_file: str = _setting("", "path", "written with the base URL once requests are accepted")
    workers: int = _setting(2, "tasks", "how many tasks this instance works on at once; 0: accept and serve only")
    threads: int = _setting(0, "threads", "threads of one engine; 0: one less than there are processors")
    context_tokens: int = _setting(4096, "tokens", "longest prompt and answer together, up to the model's own limit")
    default_model: str = _setting("", "name", "the model for requests that name none; empty: the only one")
    models_loaded: int = _setting(1, "models", "how many models are kept in memory while nothing uses them")
    llama_library: str = _setting("", "path", "another llama.cpp library; empty: the one of the extra `llama`")
    snapshots: bool = _setting(True, "yes/no", "write snapshots of running texts, so that a restart is quick")
    snapshot_every_tokens: int = _setting(0, "tokens", "take one after so many tokens; 0: when one pays")
    output_every_ms: float = _setting(25.0, "milliseconds", "tokens that come quicker are committed together")
    load_timeout_s: float = _setting(600.0, "seconds", "how long a model may take to load")
    stall_timeout_s: float = _setting(120.0, "seconds", "how long an engine may be silent before it is ended")
    lease_s: float = _setting(10.0, "seconds", "how long a paused instance keeps its tasks from the others")
    grace_s: float = _setting(0.0, "seconds", "how long a stopping service lets texts end before it hands them back")
    cancel_wait_s: float = _setting(5.0, "seconds", "how long a cancel request waits for the end of the task")
    queue_max: int = _setting(10_000, "tasks", "how many tasks may wait")
    idempotency_hours: float = _setting(24.0, "hours", "how long an idempotency key is remembered after it was used")
    retention_days: float = _setting(30.0, "days", "how long a finished response is kept; 0: for ever")
    unstored_minutes: float = _setting(60.0, "minutes", "how long a finished response with store=false is kept")
    snapshot_hours: float = _setting(
        0.0, "hours", "how long a waiting text's snapshots are kept; 0: as long as it waits"
    )
    webhook_private: bool = _setting(False, "yes/no", "let webhooks go to private addresses and to this machine")
    webhook_timeout_s: float = _setting(15.0, "seconds", "how long the receiver of a webhook may take to answer")
    webhook_days: float = _setting(7.0, "days", "how long a webhook is listed after it was delivered; 0: for ever")
    scripted: bool = _setting(False, "yes/no", "register the deterministic model `scripted`, for tests")
    log_level: str = _setting("info", "word", "debug, info, warning or error")
    log_format: str = _setting("text", "word", "how the log is written: text or json, one line a record")
    otel: bool = _setting(False, "yes/no", "send traces by OpenTelemetry (extra `otel`) to where OTEL_… variables say")

    @property
    def database(self) -> Path:
        """The SQLite file; raises Refused where the store is none."""
        if self.on_postgres:
            raise Refused("this store is no file of this machine; use the database's own tools")
        return Path(self.store.removeprefix("sqlite:///")) if self.store else self.data_dir / "retoma.db"

    @property
    def on_postgres(self) -> bool:
        """The store is a PostgreSQL database."""
        return self.store.startswith(_POSTGRES)

    @property
    def shown_store(self) -> str:
        """Which store it is, without its password."""
        return without_password(self.store) if self.on_postgres else str(self.database)

    @property
    def engine_threads(self) -> int:
        """Threads of one engine, the default filled in: a busy process beside the engine must not share its core."""
        return self.threads or max(1, (os.cpu_count() or 2) - 1)


@dataclass(frozen=True, slots=True)
class Sourced:
    """The settings in force, and for each where it came from."""

    settings: Settings
    sources: Mapping[str, str]


def default_data_dir() -> Path:
    """The platform's folder for a user's data."""
    return Path(platformdirs.user_data_dir("retoma", appauthor=False))


def load(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Sourced:
    """Settings from all four places; raises Refused, which names the place and what is wrong."""
    data_dir = Path(flags.get("data_dir") or environment.get("RETOMA_DATA_DIR") or default_data_dir()).absolute()
    file = data_dir / "retoma.toml"
    layers: list[tuple[str, Mapping[str, Any]]] = [
        (str(file), _read_file(file)),
        ("environment", _read_environment(environment)),
        ("flag", {name: value for name, value in flags.items() if value is not None}),
    ]
    values: dict[str, Any] = {}
    known = {setting.name: setting for setting in fields(Settings)}
    sources = dict.fromkeys(known, "default")
    for source, layer in layers:
        for name, value in layer.items():
            if name not in known:
                raise Refused(f"{source}: there is no setting {name!r}; `retoma settings` lists them")
            values[name], sources[name] = _convert(known[name], value, source), source
    values["data_dir"] = data_dir
    return Sourced(_checked(Settings(**values)), sources)


def _read_file(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Refused(f"{file} can't be read: {error}") from error


def _read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(_PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(_PREFIX) and name not in _OTHER_VARIABLES and not name.startswith(_SWITCH_PREFIXES)
    }


def _convert(setting: Field[Any], value: Any, source: str) -> Any:
    default: object = setting.default
    kind = type(default)
    try:
        if kind is bool:
            return _as_bool(value)
        if kind is int and isinstance(value, bool | float):
            raise TypeError(value)  # noqa: TRY301 - int() would accept them
        return cast("type[Any]", kind)(value)
    except (TypeError, ValueError):
        unit = setting.metadata["unit"]
        raise Refused(f"{source}: {setting.name} = {value!r} is not valid; it takes: {unit}") from None


def _as_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"1": True, "yes": True, "true": True, "on": True, "0": False, "no": False, "false": False, "off": False}
    try:
        return words[str(value).lower()]
    except KeyError:
        raise ValueError(value) from None


def _checked(settings: Settings) -> Settings:
    for name in _NOT_NEGATIVE:
        if not math.isfinite(getattr(settings, name)):
            raise Refused(f"{name} = {getattr(settings, name)} is not a finite number")
        if getattr(settings, name) < 0:
            raise Refused(f"{name} = {getattr(settings, name)} is below 0")
    if settings.port > 65535:  # noqa: PLR2004 - the largest port
        raise Refused(f"port = {settings.port} is above 65535")
    if settings.lease_s < _LEASE_S_MIN:
        raise Refused(f"lease_s = {settings.lease_s} is below {_LEASE_S_MIN}")
    low, high = _WEBHOOK_TIMEOUT_S
    if not low <= settings.webhook_timeout_s <= high:
        raise Refused(f"webhook_timeout_s = {settings.webhook_timeout_s} is not from {low} to {high}")
    if settings.context_tokens < 16:  # noqa: PLR2004 - a prompt template alone needs that
        raise Refused(f"context_tokens = {settings.context_tokens} is below 16")
    if settings.store and not settings.store.startswith(("sqlite:///", *_POSTGRES)):
        scheme = settings.store.partition(":")[0]  # the rest may hold a password
        raise Refused(f"store = {scheme}:… is not supported; use sqlite:///PATH or postgresql://USER@HOST/DATABASE")
    return settings
