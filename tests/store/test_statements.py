"""Every SQL statement is explained, prepared, bound once, and runs over the index that its comment names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import apsw
import pytest

from retoma.core.pairing import Pairing
from retoma.store import rows
from retoma.store.dialect import POSTGRES, SQLITE
from retoma.store.statements import Statement, all_statements, statement
from retoma.transactions.clients import ClientRow
from tests.support.stores import template

SOURCE = Path(rows.__file__).parents[1]
STATEMENTS = all_statements()
NAMES = [one.name for one in STATEMENTS]
EVERY = pytest.mark.parametrize("one", STATEMENTS, ids=NAMES)
# Small tables that are read whole, and lists for people: no index is owed to them.
# The two names are those of subqueries.
WHOLE_TABLE = re.compile(r"SCAN (?!waiting|needing)\w+$")
SORTS_FEW = {"tasks.owners", "snapshots.of_task"}  # the instances; the two snapshots that a task keeps
SMALL = {
    "instances.all",
    "instances.delete",
    "models.all",
    "snapshots.all",
    "pairings.lock",
    "pairings.count",
    "pairings.audit",
}


@pytest.fixture(scope="module")
def connection() -> Iterator[apsw.Connection]:
    made = apsw.Connection(str(template()), flags=apsw.SQLITE_OPEN_READONLY)
    yield made
    made.close()


def plan(connection: apsw.Connection, one: Statement) -> str:
    text = one.render(SQLITE)
    nothing = dict.fromkeys(re.findall(r":(\w+)", text))
    return "\n".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", nothing))


@EVERY
def test_a_statement_prepares_on_sqlite(connection: apsw.Connection, one: Statement) -> None:
    plan(connection, one)


@EVERY
def test_a_statement_says_in_a_sentence_why_it_is_as_it_is(one: Statement) -> None:
    assert re.fullmatch(r"[A-Z].{15,}\.", one.comment), one.comment


@EVERY
def test_a_statement_names_its_columns_and_orders_its_rows(one: Statement) -> None:
    assert not re.search(r"SELECT\s+(DISTINCT\s+)?(\w+\.)?\*", one.text)
    if one.text.startswith("SELECT") and "LIMIT :limit\n" in f"{one.text}\n" and "AS waiting" not in one.text:
        assert "ORDER BY" in one.text
    assert "now()" not in one.text.lower()
    assert "LIKE" not in one.text


@EVERY
def test_the_dialects_words_are_all_replaced(one: Statement) -> None:
    for dialect in (SQLITE, POSTGRES):
        assert "$" not in one.render(dialect)


def bound_names(root: Path) -> Iterator[str]:
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="statement"), args=[ast.Constant(value=str(name))]):
                    yield name
                case _:
                    pass


@pytest.mark.requirement("S-001a")
def test_every_statement_is_bound_exactly_once() -> None:
    assert Counter(bound_names(SOURCE)) == Counter(NAMES)


def test_an_unknown_statement_is_an_error() -> None:
    with pytest.raises(KeyError):
        statement("tasks.nonsense")


def keyed_by_primary_key(one: Statement) -> bool:
    return "by primary key" in one.comment or "part of the primary key" in one.comment or "by its key" in one.comment


@EVERY
def test_a_statement_uses_the_index_that_its_comment_names(connection: apsw.Connection, one: Statement) -> None:
    used = plan(connection, one)
    if keyed_by_primary_key(one):
        assert re.search(r"PRIMARY KEY|sqlite_autoindex_\w+_1", used), used
    named = re.findall(r"(?:index |indexes )(\w+_\w+)", one.comment)
    for index in named:
        if index == "token_hash":
            continue
        assert f"INDEX {index}" in used, used


@EVERY
def test_only_a_statement_that_says_so_reads_a_whole_table(connection: apsw.Connection, one: Statement) -> None:
    scans = [line for line in plan(connection, one).splitlines() if WHOLE_TABLE.match(line)]
    if scans and one.name not in SMALL:
        assert "reads the whole table" in one.comment, scans


@EVERY
def test_no_statement_of_a_transaction_sorts_what_an_index_could_order(
    connection: apsw.Connection, one: Statement
) -> None:
    if "reads the whole table" not in one.comment and one.name not in SMALL | SORTS_FEW:
        assert "TEMP B-TREE" not in plan(connection, one)


ROWS = {
    rows.TaskRow: ["tasks.lock", "tasks.read", "tasks.page", "tasks.audit_page"],
    rows.ModelRow: ["models.read", "models.all"],
    rows.InstanceRow: ["instances.lock", "instances.all"],
    rows.SnapshotRow: ["snapshots.of_task"],
    rows.MessageRow: ["outbox.page", "outbox.page_of_client"],
    ClientRow: ["clients.read", "clients.page"],
    Pairing: ["pairings.lock"],
}


@pytest.mark.parametrize(("row", "name"), [(row, name) for row, names in ROWS.items() for name in names])
def test_the_fields_of_a_row_are_the_columns_of_its_statements(row: type, name: str) -> None:
    columns = statement(name).text.removeprefix("SELECT").partition("FROM")[0]
    assert [column.strip() for column in columns.split(",")] == [one.name for one in fields(row)]


def test_the_first_fields_of_an_event_are_the_columns_of_its_page() -> None:
    names = [one.name for one in fields(rows.EventRow)]
    for name, count in (("task_events.after", 3), ("task_events.whole", 4)):
        columns = statement(name).text.removeprefix("SELECT").partition("FROM")[0]
        assert [column.strip() for column in columns.split(",")] == names[:count]


def test_the_columns_of_an_inserted_row_are_those_of_the_table(connection: apsw.Connection) -> None:
    for one in STATEMENTS:
        match = re.match(r"INSERT INTO (\w+) \(([^)]*)\)", one.text)
        if match:
            table = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (match[1],))]
            assert [name.strip() for name in match[2].split(",")] == table, one.name
