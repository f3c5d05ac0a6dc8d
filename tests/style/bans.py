"""The bans that ruff can't see, as functions from a file's text to the lines that break them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

_SELECT_STAR = re.compile(r"\bSELECT\s+(?:DISTINCT\s+)?(?:\w+\.)?\*")
_SQL = re.compile(r"\b(?:SELECT|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|(?:CREATE|ALTER|DROP)\s+TABLE)\s")
# The names are put together here so that this file doesn't hold what it bans.
_MACHINE_PATH = re.compile(r"(?<![\w.*~-])/(?:work|root|farm|home/\w+|Users/\w+)/[\w.]")
_REGISTRIES = [
    ".".join(parts)
    for parts in [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("deb", "debian", "org"),
        ("proxy", "golang", "org"),
        ("static", "crates", "io"),
        ("index", "crates", "io"),
    ]
]


def select_star_in_sql(text: str) -> Iterator[int]:
    """Lines of a `.sql` file, or of any text, that ask for whatever columns there are."""
    for match in _SELECT_STAR.finditer(text):
        yield text.count("\n", 0, match.start()) + 1


def select_star_in_python(text: str) -> Iterator[int]:
    """Lines of Python whose string constants ask for whatever columns there are."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SELECT_STAR.search(node.value):
            yield node.lineno


def sql_in_f_strings(text: str) -> Iterator[int]:
    """Lines of Python where a value is written into a statement instead of being a parameter of it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr) and any(isinstance(part, ast.FormattedValue) for part in node.values):
            constants = [part.value for part in node.values if isinstance(part, ast.Constant)]
            if _SQL.search(" ".join(map(str, constants))):
                yield node.lineno


def type_ignores(text: str) -> Iterator[int]:
    """Lines with the ignore comment that silences every finding; `pyright: ignore[rule]` names one."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and re.search(r"#\s*type:\s*ignore", token.string):
            yield token.start[0]


def skips_without_reason(text: str) -> Iterator[int]:
    """Lines of a test that leave it out, or expect it to fail, without saying why."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            skip = _skip_name(node.func)
            said = [*node.args[1 if skip == "skipif" else 0 :], *(k.value for k in node.keywords if k.arg == "reason")]
            # xfail's only positional argument is a condition.
            if skip == "xfail":
                said = [k.value for k in node.keywords if k.arg == "reason"]
            if skip and not any(not isinstance(word, ast.Constant) or word.value for word in said):
                yield node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from (d.lineno for d in node.decorator_list if not isinstance(d, ast.Call) and _skip_name(d))


def _skip_name(function: ast.expr) -> str | None:
    match function:
        case ast.Attribute(value=ast.Name(id="pytest"), attr="skip" | "xfail" as name):
            return name
        case ast.Attribute(value=ast.Attribute(attr="mark"), attr="skip" | "skipif" | "xfail" as name):
            return name
        case _:
            return None


def machine_paths(text: str) -> Iterator[int]:
    """Lines that name a folder which only one machine has."""
    for number, line in enumerate(text.splitlines(), 1):
        if _MACHINE_PATH.search(line):
            yield number


def registry_hosts(text: str) -> Iterator[int]:
    """Lines that name a package registry's host; a machine's own set-up says where packages come from."""
    for number, line in enumerate(text.splitlines(), 1):
        if any(host in line for host in _REGISTRIES):
            yield number
