"""Retoma: local AI inference that never loses work."""

__version__ = "0.2.0"
