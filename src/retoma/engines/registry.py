"""Finds an engine by its name: those that come with Retoma, and whatever registered in the group `retoma.engines`."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import cast

from retoma.engines.contract import Engine
from retoma.errors import ModelUnavailable

GROUP = "retoma.engines"
BUILT_IN = MappingProxyType({"llama": "retoma.engines.llama", "scripted": "retoma.engines.scripted"})


def find(name: str) -> Engine:
    """The engine of this name; raises ModelUnavailable when there is none or its packages are missing."""
    try:
        if name in BUILT_IN:
            return cast("Engine", importlib.import_module(BUILT_IN[name]).load)
        for point in entry_points(group=GROUP, name=name):
            return cast("Engine", point.load())
    except ImportError as error:
        raise ModelUnavailable(
            f"The engine {name!r} needs the package {error.name or error!s}; "
            f"install it with `pip install 'retoma[{name}]'`."
        ) from error
    raise ModelUnavailable(
        f"There is no engine called {name!r}; those that come with Retoma are {', '.join(BUILT_IN)}."
    )
