"""Which addresses are the world's."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retoma.runtime.webhook_address import is_global, is_private_in_writing

PRIVATE_V4 = [
    "0.0.0.0",  # noqa: S104 - one of those that must be refused
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.255",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
]
GLOBAL_V4 = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1"]
PRIVATE_V6 = [
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "2001::1",
    "2001:0:53aa:64c:0:7a00:f5ff:fffe",
    "2001:2::1",
    "2001:db8::1",
    "4000::1",
    "fc00::1",
    "fd12:3456:789a::1",
    "fe80::1",
    "fe80::1%lo",
    "2606:4700::1%1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]
GLOBAL_V6 = ["2606:4700:4700::1111", "2a00:1450:4001::1", "2001:4860:4860::8888"]


def mapped(address: str) -> str:
    return f"::ffff:{address}"


def nat64(address: str) -> str:
    return f"64:ff9b::{address}"


def six_to_four(address: str) -> str:
    number = int(IPv4Address(address))
    return f"2002:{number >> 16:x}:{number & 0xFFFF:x}::1"


CARRIERS = [mapped, nat64, six_to_four]


@pytest.mark.parametrize("address", [*GLOBAL_V4, *GLOBAL_V6])
def test_an_address_of_the_world_is_one(address: str) -> None:
    assert is_global(address)


@pytest.mark.parametrize("address", [*PRIVATE_V4, *PRIVATE_V6, "", "example.org", "1.2.3", "8.8.8.8 "])
def test_everything_else_is_refused(address: str) -> None:
    assert not is_global(address)


@pytest.mark.parametrize("carry", CARRIERS)
@pytest.mark.parametrize(("addresses", "expected"), [(PRIVATE_V4, False), (GLOBAL_V4, True)])
def test_an_address_inside_of_another_is_looked_at(carry, addresses: list[str], expected: bool) -> None:
    for address in addresses:
        assert is_global(carry(address)) is expected, carry(address)


@given(st.ip_addresses(v=4))
def test_no_form_of_an_address_says_more_than_the_address(address: IPv4Address) -> None:
    expected = is_global(str(address))
    assert [is_global(carry(str(address))) for carry in CARRIERS] == [expected] * 3
    assert not (expected and not address.is_global)


@given(st.ip_addresses(v=6))
def test_what_python_calls_private_is_never_global_here(address: IPv6Address) -> None:
    if is_global(str(address)) and address.ipv4_mapped is None:
        assert address.is_global


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "a.localhost",
        "localhost.localdomain",
        "127.0.0.1",
        "127.1",
        "0",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0x7f.1",
        "10.1",
        "::1",
        "::ffff:7f00:1",
        "fe80::1",
        "999.999.999.999:1",
    ],
)
def test_a_host_that_says_by_itself_that_it_is_private_is_known(host: str) -> None:
    assert is_private_in_writing(host)


@pytest.mark.parametrize("host", ["example.org", "localhost.example.org", "8.8.8.8", "134744072", "2606:4700::1", "a1"])
def test_a_name_or_a_global_address_is_not(host: str) -> None:
    assert not is_private_in_writing(host)


@given(st.integers(0, 2**32 - 1))
def test_a_resolver_finds_in_a_number_the_address_that_was_checked(number: int) -> None:
    found = socket.getaddrinfo(str(number), 80, type=socket.SOCK_STREAM)[0][4][0]
    assert is_private_in_writing(str(number)) is not is_global(str(found))
