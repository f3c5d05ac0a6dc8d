"""Pairings and clients: one code makes one client, wrong tries end codes, a revoked client may nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

import pytest

from retoma.core.pairing import normalised
from retoma.errors import Conflict, NotFound, RetomaError
from retoma.limits import PAIRING_MS, PAIRING_WRONG_TRIES_MAX, PAIRINGS_OPEN_MAX
from retoma.store.statements import Statement
from retoma.transactions import clients, pairings
from retoma.transactions.clients import Client, ClientRow
from retoma.transactions.pairings import OpenPairing, UseCode
from tests.support.world import World

SCOPES = frozenset({"responses:read", "responses:write"})
CODE, OTHER, WRONG = "ABCDEFGH", "HGFEDCBA", "22222222"


def opened(world: World, code: str = CODE, **changes: Any) -> OpenPairing:
    command = OpenPairing(world.ids.new("pair"), code, "", SCOPES, world.clock.wall_ms())
    command = replace(command, **changes)
    assert world.does(pairings.open_pairing, command) == command.now_ms + PAIRING_MS
    return command


def use(world: World, code: str, name: str = "", **changes: Any) -> UseCode:
    client_id = world.ids.new("cli")
    token_hash = sha256(client_id.encode()).digest()
    return replace(UseCode(code, client_id, name, token_hash, world.clock.wall_ms()), **changes)


def used(world: World, code: str, name: str = "") -> Client | None:
    return world.does(pairings.use_code, use(world, code, name))


def listed(world: World, *, revoked_too: bool = False) -> list[ClientRow]:
    return world.store.read(partial(clients.read_clients, before="", limit=100, revoked_too=revoked_too))


def paired(world: World, name: str = "phone") -> Client:
    opened(world)
    client = used(world, CODE, name)
    assert client is not None
    return client


# Codes


@pytest.mark.requirement("S-005")
def test_a_code_makes_one_client_that_its_token_names(world: World) -> None:
    opened(world)
    command = use(world, normalised("abcd-efgh"), "phone")
    made = world.does(pairings.use_code, command)
    assert made == Client(command.client_id, "phone", SCOPES)
    assert world.store.read(partial(clients.read_client, token_hash=command.token_hash)) == made
    assert used(world, CODE) is None
    assert len(listed(world)) == 1
    assert world.problems() == []


@pytest.mark.requirement("S-005")
def test_an_exchange_driven_again_answers_the_same_and_makes_no_second_client(world: World) -> None:
    opened(world)
    command = use(world, CODE)
    first = world.does(pairings.use_code, command)
    assert first is not None
    assert world.does(pairings.use_code, command) == first
    assert [row.id for row in listed(world)] == [first.id]


@pytest.mark.requirement("S-005")
def test_a_code_given_out_again_by_the_same_command_is_one_code(world: World) -> None:
    command = opened(world)
    assert world.does(pairings.open_pairing, command) == command.now_ms + PAIRING_MS
    assert used(world, CODE) is not None
    assert used(world, CODE) is None


@pytest.mark.parametrize(
    ("pairing", "given", "name"), [("desk", "", "desk"), ("desk", "phone", "phone"), ("", "", "client")]
)
def test_a_client_is_called_what_it_says_or_what_its_code_was_made_for(
    world: World, pairing: str, given: str, name: str
) -> None:
    opened(world, name=pairing)
    client = used(world, CODE, given)
    assert client is not None
    assert client.name == name


def test_of_two_codes_each_makes_its_own_client(world: World) -> None:
    opened(world, scopes=frozenset({"admin"}))
    opened(world, OTHER)
    second, first = used(world, OTHER), used(world, CODE)
    assert first is not None
    assert second is not None
    assert (first.scopes, second.scopes) == (frozenset({"admin"}), SCOPES)


def test_the_fifth_wrong_try_ends_every_code_that_is_open(world: World) -> None:
    opened(world)
    for _ in range(PAIRING_WRONG_TRIES_MAX - 2):
        assert used(world, WRONG) is None
    opened(world, OTHER)
    assert used(world, WRONG) is None  # the fourth for one, the first for the other
    assert used(world, WRONG) is None
    assert used(world, CODE) is None  # which is the third for the other
    assert used(world, OTHER) is not None


def test_four_wrong_tries_end_nothing(world: World) -> None:
    opened(world)
    for _ in range(PAIRING_WRONG_TRIES_MAX - 1):
        assert used(world, WRONG) is None
    assert used(world, CODE) is not None


def test_a_code_is_good_for_ten_minutes_and_not_longer(world: World) -> None:
    opened(world)
    world.clock.advance(PAIRING_MS - 1)
    opened(world, OTHER)
    assert used(world, CODE) is not None
    world.clock.advance(PAIRING_MS)
    assert used(world, OTHER) is None


def test_so_many_codes_are_open_and_no_more_until_one_has_expired(world: World) -> None:
    for number in range(PAIRINGS_OPEN_MAX):
        opened(world, f"CODE{number:04}")
    command = OpenPairing(world.ids.new("pair"), CODE, "", SCOPES, world.clock.wall_ms())
    with pytest.raises(Conflict, match="16 codes are open"):
        world.does(pairings.open_pairing, command)
    assert used(world, CODE) is None
    world.clock.advance(PAIRING_MS)
    assert world.does(pairings.open_pairing, replace(command, now_ms=world.clock.wall_ms()))
    assert used(world, CODE) is not None


# Races


def together(acts: list[Callable[[], Any]]) -> list[Any]:
    """What they return or raise, begun at the same moment in a thread each."""
    barrier = threading.Barrier(len(acts))
    found: list[Any] = [None] * len(acts)

    def run(place: int) -> None:
        barrier.wait(20)
        try:
            found[place] = acts[place]()
        except RetomaError as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


@pytest.mark.requirement("S-003")
def test_of_many_that_use_one_code_at_once_one_becomes_a_client(world: World) -> None:
    for _ in range(10):
        opened(world)
        before = len(listed(world))
        commands = [use(world, CODE) for _ in range(4)]
        made = together([partial(world.does, pairings.use_code, command) for command in commands])
        assert sum(one is not None for one in made) == 1, made
        assert len(listed(world)) == before + 1


@pytest.mark.requirement("S-003")
def test_wrong_tries_at_once_are_all_counted(world: World) -> None:
    for _ in range(5):
        opened(world)
        commands = [use(world, WRONG) for _ in range(PAIRING_WRONG_TRIES_MAX)]
        assert together([partial(world.does, pairings.use_code, command) for command in commands]) == [None] * 5
        assert used(world, CODE) is None


@pytest.mark.requirement("S-003")
def test_codes_given_out_at_once_keep_their_bound(world: World) -> None:
    for number in range(PAIRINGS_OPEN_MAX - 2):
        opened(world, f"CODE{number:04}")
    commands = [OpenPairing(world.ids.new("pair"), CODE, "", SCOPES, world.clock.wall_ms()) for _ in range(6)]
    answers = together([partial(world.does, pairings.open_pairing, command) for command in commands])
    assert sum(isinstance(answer, Conflict) for answer in answers) == 4, answers


# Clients


def test_a_revoked_client_may_nothing_and_revoking_it_again_changes_nothing(world: World) -> None:
    opened(world)
    command = use(world, CODE)
    client = world.does(pairings.use_code, command)
    assert client is not None
    revoke = partial(clients.revoke_client, client_id=client.id)
    world.store.transact(partial(revoke, now_ms=5))
    world.store.transact(partial(revoke, now_ms=9))
    assert world.store.read(partial(clients.read_client, token_hash=command.token_hash)) is None
    assert listed(world) == []
    assert [row.revoked_at_ms for row in listed(world, revoked_too=True)] == [5]
    assert world.store.read(partial(clients.read_revoked, client_ids=[client.id, "cli_gone"])) == [
        client.id,
        "cli_gone",
    ]
    assert world.problems() == []


def test_only_a_client_that_there_is_can_be_revoked(world: World) -> None:
    client = paired(world)
    for unknown in ("cli_" + "0" * 32, "nonsense", "", client.id[:-1], "x\0y", "\udcff"):
        with pytest.raises(NotFound):
            world.store.transact(partial(clients.revoke_client, client_id=unknown, now_ms=0))
    with pytest.raises(Conflict, match="command line"):
        world.store.transact(partial(clients.revoke_client, client_id=clients.LOCAL_CLIENT.id, now_ms=0))
    assert world.store.read(partial(clients.read_revoked, client_ids=[client.id])) == []


def test_what_a_revoked_client_was_promised_goes_on(world: World) -> None:
    client = paired(world)
    task = world.accept(client_id=client.id)
    world.store.transact(partial(clients.revoke_client, client_id=client.id, now_ms=0))
    claimed = world.claim()
    assert claimed is not None
    assert claimed.id == task.id
    assert world.finish(world.start(claimed)).state == "completed"


def test_pages_of_clients_miss_none_and_repeat_none(world: World) -> None:
    made = [paired(world, str(number)).id for number in range(7)]
    world.store.transact(partial(clients.revoke_client, client_id=made[3], now_ms=0))
    for revoked_too, expected in ((True, made), (False, [one for one in made if one != made[3]])):
        seen: list[str] = []
        before = ""
        while page := world.store.read(partial(clients.read_clients, before=before, limit=2, revoked_too=revoked_too)):
            seen += [row.id for row in page]
            before = seen[-1]
        assert seen == expected[::-1]


def test_the_last_use_only_ever_rises_and_is_no_new_version(world: World) -> None:
    first, second = paired(world), paired(world)
    for uses in ({first.id: 7, second.id: 3}, {first.id: 5, second.id: 4, "cli_gone": 9}, {first.id: 6}):
        world.store.transact(partial(clients.note_uses, used_at_ms=uses))
    assert {row.id: row.last_used_at_ms for row in listed(world)} == {first.id: 7, second.id: 4}


# The checker


DAMAGE = {
    "UPDATE clients SET scopes = '[\"root\"]'": "its scope 'root' is unknown",
    "UPDATE clients SET scopes = '[]'": "no list of any",
    "UPDATE clients SET scopes = '{}'": "no list of any",
    "UPDATE clients SET scopes = 'admin'": "no list of any",
    "UPDATE pairings SET scopes = '[7]'": "its scope 7 is unknown",
    "UPDATE pairings SET wrong_tries = 5": "was guessed at 5 times",
    "UPDATE pairings SET expires_at_ms = expires_at_ms + 1": "more than 10 minutes",
}


@pytest.mark.parametrize("sql", DAMAGE)
def test_the_checker_finds_what_is_wrong_with_a_client_or_a_code(world: World, sql: str) -> None:
    paired(world)
    opened(world, OTHER)
    assert world.problems() == []
    world.store.transact(lambda tx: tx.execute(Statement("tests.damage", "Writes what should not be.", sql), {}))
    (finding,) = world.problems()
    assert finding.invariant == "S-001"
    assert finding.task_id.startswith("cli_" if "clients" in sql else "pair_")
    assert DAMAGE[sql] in finding.message
