"""Where a side of a transfer can be reached, as the two sides tell each other (transit.md, "Hints").

A peer's hints are its own words: any host and port may be among them. What cannot be used is left out, and no more
than `MAX_HINTS` of each kind are.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from restante.common.errors import Misuse
from restante.common.texts import redacted_url

DIRECT: Final = "direct-tcp-v1"
RELAY: Final = "relay-v1"
ABILITIES: Final = [{"type": DIRECT}, {"type": RELAY}]

MAX_HINTS: Final = 20
"""Addresses, and relays, of a peer that are tried. Each is dialled, and is sent 87 bytes, whoever is there. A
computer with four networks and both versions of IP offers eight."""

MAX_RELAY_ADDRESSES: Final = 4
"""Addresses of one relay that are tried."""


class Address(msgspec.Struct, frozen=True, order=True, rename={"host": "hostname"}):
    """A host, which is a name or an IP address, and a TCP port."""

    host: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z._:-]{1,255}\Z")]
    """A name, or an IP address without a zone: `fe80::1%eth0` is of use on the peer's computer only."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    """The number of the port."""

    def __str__(self) -> str:
        """Return it as it is written in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Relay(msgspec.Struct, frozen=True):
    """A relay, which connects two sides that can both reach it. It has at least one address."""

    addresses: tuple[Address, ...]
    """Where it can be reached."""


def parse_relay(url: str) -> Relay:
    """Return the relay that a user names as `tcp:HOST:PORT`, like shipped clients. Raises Misuse."""
    scheme, _, location = url.partition(":")
    host, _, port = location.removeprefix("//").rpartition(":")
    fields = {
        "hostname": host.removeprefix("[").removesuffix("]"),
        "port": int(port) if port.isdecimal() and len(port) <= 5 else 0,
    }
    address = _address(fields) if scheme == "tcp" else None
    if address is None:
        raise Misuse(f"a relay is named by tcp:HOST:PORT, not '{redacted_url(url)}'")
    return Relay((address,))


class Hints(msgspec.Struct, frozen=True):
    """Where one side can be reached."""

    direct: tuple[Address, ...] = ()
    """Its own addresses."""
    relays: tuple[Relay, ...] = ()
    """Relays that it can reach."""


def transit_message(hints: Hints) -> dict[str, Any]:
    """Return what the peer is sent as `transit`."""
    direct = [_hint(address) for address in hints.direct]
    relays = [{"type": RELAY, "hints": [_hint(address) for address in relay.addresses]} for relay in hints.relays]
    return {"abilities-v1": ABILITIES, "hints-v1": [*direct, *relays]}


def parse_hints(message: Any) -> Hints:
    """Return what can be used of a peer's `transit`. It may be any JSON."""
    hints = message.get("hints-v1") if isinstance(message, dict) else None
    direct: dict[Address, None] = {}
    relays: dict[Relay, None] = {}
    for hint in hints if isinstance(hints, list) else ():
        kind = hint.get("type") if isinstance(hint, dict) else None
        if kind == DIRECT and len(direct) < MAX_HINTS and (address := _address(hint)) is not None:
            direct[address] = None
        elif kind == RELAY and len(relays) < MAX_HINTS and (relay := _relay(hint)) is not None:
            relays[relay] = None
    return Hints(tuple(direct), tuple(relays))


def _hint(address: Address) -> dict[str, Any]:
    return {"type": DIRECT, "priority": 0.0, "hostname": address.host, "port": address.port}


def _relay(hint: dict[str, Any]) -> Relay | None:
    """Return the relay that a hint names. A way to it that is not TCP, like a WebSocket, is left out."""
    hints = hint.get("hints")
    hints = hints[: 2 * MAX_RELAY_ADDRESSES] if isinstance(hints, list) else []
    tcp_hints = [item for item in hints if isinstance(item, dict) and item.get("type") == DIRECT]
    addresses = [address for item in tcp_hints if (address := _address(item)) is not None]
    return Relay(tuple(addresses[:MAX_RELAY_ADDRESSES])) if addresses else None


def _address(hint: dict[str, Any]) -> Address | None:
    try:
        return msgspec.convert(hint, Address)
    except msgspec.ValidationError:
        return None
