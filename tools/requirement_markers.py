"""Finds `@pytest.mark.requirement("<id>", …)` in the tests by reading them, so that none has to be imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Marked:
    """A test that says which requirement it checks."""

    requirement: str
    path: str
    test: str


def markers(tests: Path) -> list[Marked]:
    """Every marked test under `tests`: on functions, on classes, in `pytestmark`, or on a parameter of a test."""
    found: set[Marked] = set()
    for path in sorted(tests.rglob("test_*.py")):
        name = path.relative_to(tests.parent).as_posix()
        tree = ast.parse(path.read_text(), filename=name)
        found |= {Marked(requirement, name, test) for test, requirement in _walk(tree, "")}
    return sorted(found)


def _walk(node: ast.AST, inside: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inside = f"{inside}::{node.name}" if inside else node.name
    elif isinstance(node, ast.Call) and _is_marker(node.func):
        for argument in node.args:
            yield inside or "every test of the file", _written_out(argument)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, inside)


def _written_out(argument: ast.expr) -> str:
    match argument:
        case ast.Constant(value=str(requirement)):
            return requirement
        case _:
            raise SyntaxError(f"line {argument.lineno}: write a requirement's id out, not {ast.unparse(argument)}")


def _is_marker(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "requirement"
        and isinstance(function.value, ast.Attribute)
        and function.value.attr == "mark"
    )
