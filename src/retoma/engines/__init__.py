"""Engines: what turns a prompt into tokens, each in a process of its own. They know no task and no store."""
