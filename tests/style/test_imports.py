"""The layers hold, and `core` imports nothing that could surprise it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tools.tree import ROOT

# Values, tables, encodings and types: nothing here reads a file, a clock, an environment or a random number.
CORE_MAY_IMPORT = {
    "__future__",
    "array",
    "base64",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "math",
    "re",
    "sys",  # for the byte order
    "types",
    "typing",
    "retoma.errors",
    "retoma.limits",
}


def test_the_import_contracts_of_pyproject_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    answer = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_core_imports_only_what_is_on_its_list() -> None:
    imported = {
        (path.name, module)
        for path in (ROOT / "src" / "retoma" / "core").rglob("*.py")
        for module in _imports(path)
        if not (module == "retoma.core" or module.startswith("retoma.core."))
    }
    assert imported
    assert {(name, module) for name, module in imported if module not in CORE_MAY_IMPORT} == set()


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found
