"""Which addresses a webhook may go to: the world's, and nothing that only this machine or its network can reach.

Otherwise whoever may submit a response could have the service knock on doors behind its firewall. The rule lets pass
what is known to be global and refuses the rest, also inside of the IPv6 forms that carry an IPv4 address.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_LOW_32_BITS = 2**32 - 1
# Once the anycast address of relays between IPv4 and IPv6, taken back since (RFC 7526).
_RELAYS = IPv4Network("192.88.99.0/24")
_LOCALHOST = ("localhost", "localhost.localdomain", "ip6-localhost")


def is_global(address: str) -> bool:
    """False also for what is no address."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return _global_v4(found) if isinstance(found, IPv4Address) else _global_v6(found)


def is_private_in_writing(host: str) -> bool:
    """True if the host itself, without any look at DNS, says that it is no global address."""
    if host in _LOCALHOST or host.endswith(".localhost"):
        return True
    literal = _literal(host)
    return literal is not None and not is_global(literal)


def _literal(host: str) -> str | None:
    """The address that the host writes down, also in the short and the octal forms that resolvers still take."""
    if ":" in host:
        return host
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return None


def _global_v4(address: IPv4Address) -> bool:
    return address.is_global and not address.is_multicast and not address.is_reserved and address not in _RELAYS


def _global_v6(address: IPv6Address) -> bool:
    if address.scope_id is not None:
        return False
    if address.ipv4_mapped is not None:
        return _global_v4(address.ipv4_mapped)
    if address in _NAT64:
        return _global_v4(IPv4Address(int(address) & _LOW_32_BITS))
    if address.sixtofour is not None and not _global_v4(address.sixtofour):
        return False
    return address in _GLOBAL_UNICAST and address.is_global and address.teredo is None
