"""Scopes: what a client may do. Which route needs which one is the table of http/guard.py."""

from __future__ import annotations

ADMIN = "admin"
"""May do everything, and sees the tasks of all clients."""

SCOPES = ("responses:write", "responses:read", "tasks:read", "models:read", "models:write", ADMIN)

# What a program needs that asks models and reads their answers. ADMIN is only ever given by its name.
DEFAULT_SCOPES = ("responses:write", "responses:read", "models:read")
