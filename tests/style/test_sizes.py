"""Modules and functions stay short enough to be read in one go."""

from __future__ import annotations

import ast

from tools.tree import ROOT, project_files

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70

MODULES = [path for path in project_files() if path.is_relative_to(ROOT / "src") and path.suffix == ".py"]


def test_no_module_is_too_long() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in MODULES}
    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > MODULE_LINES_MAX} == {}


def test_no_function_is_too_long() -> None:
    lengths = {
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}
