"""Somebody who guesses codes."""

from __future__ import annotations

from typing import Final

from restante.demo.client import PAKE_BYTES, VERSION_BYTES, SimulatedClient, World
from restante.demo.events import Attack
from restante.demo.people import APPS, draw_address
from restante.demo.simulation import Pause, Process

ATTACKERS_CLIENT: Final = ("python", "0.22.0")
"""What the attacker's program says of itself: it is one that everybody can get."""

GUESSED_APP: Final = APPS[0]
"""The application whose codes are guessed: the one with the most nameplates."""

ATTACKERS_ADDRESSES: Final = 3

BLIND_GUESSES: Final = 99
"""Without a nameplate in use, one of the numbers with one or two digits is tried."""

GUESS_PATIENCE_SECONDS: Final = 2.0
"""How long the attacker's program waits for the other side to say something."""


def guess_codes(world: World, event: Attack) -> Process:
    """Guess codes until the attack is over."""
    addresses = [draw_address(world.dice) for _ in range(ATTACKERS_ADDRESSES)]
    tried_nameplates: set[str] = set()
    while event.contains(world.simulation.now):
        world.start(_guess(world, world.dice.choice(addresses), tried_nameplates))
        yield Pause(world.dice.expovariate(1 / event.guess_seconds))


def _guess(world: World, address: str, tried_nameplates: set[str]) -> Process:
    """Claim a nameplate that somebody uses and that was not tried before, and use any code."""
    client = SimulatedClient(world, address)
    client.bind(GUESSED_APP.app_id, *ATTACKERS_CLIENT)
    client.command("list")
    if client.refusal:
        return client.end()
    listed = client.received["nameplates"].nameplates
    assert isinstance(listed, list)
    in_use = {entry.id for entry in listed}
    tried_nameplates &= in_use  # the number of a nameplate that has ended is used again
    untried = sorted(in_use - tried_nameplates)
    nameplate = world.dice.choice(untried) if untried else str(world.dice.randint(1, BLIND_GUESSES))
    tried_nameplates.add(nameplate)
    yield client.round_trip()
    mailbox = yield from client.claim(nameplate)
    if not mailbox:
        return client.end()
    client.task = world.simulation.current
    client.command("open", mailbox=mailbox)
    client.add("pake", PAKE_BYTES)
    mood = "lonely"
    if (yield from client.wait_for("pake", GUESS_PATIENCE_SECONDS)):
        client.add("version", VERSION_BYTES)
        yield client.round_trip()
        mood = "scary"
    if not client.refusal:
        client.command("release", nameplate=nameplate)
        client.command("close", mood=mood)
    yield client.round_trip()
    return client.end()
