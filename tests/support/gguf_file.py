"""A small, valid model file."""

from __future__ import annotations

from pathlib import Path


def write_tiny_model(path: Path) -> Path:
    """One without a single tensor."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_context_length(128)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
