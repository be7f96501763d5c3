"""Conversations with the Mailserver, as scripts in tests/scripts/waku, replayed over sockets.

    # the first line is a sentence: what this conversation shows
    option min_pow=0.5                     also retention=SECONDS, topics=TOPIC,TOPIC, NAME of a limit=NUMBER
    letter e topic=01020304 ttl=50 age=0 size=3      an envelope; age is how long ago it was sent, size is of its data
    letter e pow>=0.5                      the first nonce with which this is so; also pow<
    a, b connect pow=0.1 topics=01020304   Statuses are said: what the node says is taken for granted
    a enters                               Hellos are said, and a says no Status yet
    a> messages e f                        a says this
    a> status pow=0.1 light                also bloom=TOPIC,TOPIC (or-form), overwritten=TOPIC, bloom=full|none
    a> update topics=01020304,05060708     topics= is none of them
    a> packet 99 c0                        a code and a body, any
    a> zeros 2 1048577                     a code and a body of so many zeros
    a> update light & messages e           both at once
    a< status pow=2e-06 …                  the next packet that a gets
    a< ack e f                             a Batch Ack for the packet that had these envelopes; `of HEX`: this body
    a< response e f refused=f              a Message Response for it, with an error for some of them
    a< messages e f
    a cut 10                               the node ended it with this reason (hexadecimal)
    a lost                                 a goes
    @ 60s                                  the clock moves
    full, room                             the disk is full; there is room again
    archived e f                           what the archive holds, in the order in which it came

Nothing may come that the script does not name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rlp as oracle
from Crypto.Hash import keccak as keccak_oracle

from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.limits import Limits
from restante.waku.node.mailserver import ArchiveTerms
from restante.waku.protocol import packets
from restante.waku.protocol.acceptance import Policy
from restante.waku.protocol.packets import Options
from support.waku.inside import TURNS, Inside, inside
from support.waku.letters import letter
from support.waku.raw_peer import FULL_NODE, GoneError, Packet, RawPeer


class Replay:
    def __init__(self, here: Inside) -> None:
        self.here = here
        self.peers: dict[str, RawPeer] = {}
        self.reasons: dict[str, int | None] = {}
        self.letters: dict[str, Envelope] = {}
        self.heard: dict[str, list[Packet]] = defaultdict(list)

    async def do(self, line: str) -> None:
        method, match = next((method, match) for form, method in LINES if (match := re.fullmatch(form, line)))
        if not method.__name__.startswith("do_"):
            method(self, *match.groups())
            return
        await method(self, *match.groups())
        for _ in range(TURNS):
            for name, peer in self.peers.items():
                try:
                    await peer.fence()
                except GoneError as gone:
                    self.reasons[name] = gone.reason
            await self.here.archived()
        for name, peer in self.peers.items():
            self.heard[name] += peer.inbox
            peer.inbox = []

    async def do_connect(self, names: str, text: str) -> None:
        for name in names.split(", "):
            self.peers[name] = await self.here.greet(options(text, FULL_NODE))

    async def do_enter(self, names: str) -> None:
        for name in names.split(", "):
            self.peers[name] = await self.here.enter()

    async def do_say(self, name: str, text: str) -> None:
        self.peers[name].say_all([self.packet(*packet.partition(" ")[::2]) for packet in text.split(" & ")])

    async def do_lose(self, name: str) -> None:
        connections = len(self.here.node.connections)
        self.peers.pop(name).cut()
        await self.here.until("the loss of a connection", lambda: len(self.here.node.connections) < connections)

    async def do_wait(self, seconds: str) -> None:
        self.here.clock.now += int(seconds)
        self.here.node.tick()

    async def do_fill(self, how: str) -> None:
        self.here.archive.full = how == "full"

    def write(self, name: str, text: str) -> None:
        values: dict[str, Any] = {"number": len(self.letters)}
        enough: Callable[[float], bool] = lambda _: True  # noqa: E731
        for word in text.split():
            if match := re.fullmatch(r"pow(>=|<)(.+)", word):
                bound = float(match[2])
                enough = bound.__le__ if match[1] == ">=" else bound.__gt__
            else:
                key, _, value = word.partition("=")
                values[key] = bytes.fromhex(value) if key == "topic" else int(value)
        envelope = letter(now=self.here.clock.now, **values)
        while not enough(envelope.pow()):
            envelope = make(envelope.expiry, envelope.ttl, envelope.topic, envelope.data, envelope.nonce + 1)
        self.letters[name] = envelope

    def body(self, names: str) -> bytes:
        """Write the body of Messages, by another library than ours."""
        if names.startswith("of "):
            return bytes.fromhex(names.removeprefix("of "))
        letters = [self.letters[name] for name in names.split()]
        return bytes(oracle.encode([[e.expiry, e.ttl, e.topic, e.data, e.nonce] for e in letters]))

    def packet(self, kind: str, rest: str) -> Packet:
        if kind == "messages":
            return packets.MESSAGES, self.body(rest)
        if kind in {"status", "update"}:
            code = packets.STATUS if kind == "status" else packets.STATUS_UPDATE
            return code, packets.write_options(options(rest, Options()))
        number, _, body = rest.partition(" ")
        return int(number), bytes.fromhex(body) if kind == "packet" else bytes(int(body))

    def next(self, name: str, expected: int) -> bytes:
        assert self.heard[name], f"{name} got nothing"
        code, payload = self.heard[name].pop(0)
        assert code == expected
        return payload

    def status(self, name: str, text: str) -> None:
        assert self.next(name, packets.STATUS) == packets.write_options(options(text, Options()))

    def ack(self, name: str, names: str) -> None:
        assert self.next(name, packets.BATCH_ACK) == oracle.encode(digest(self.body(names)))

    def response(self, name: str, text: str) -> None:
        names, _, refused = text.partition(" refused=")
        version, (packet, errors) = oracle.decode(self.next(name, packets.MESSAGE_RESPONSE))
        assert (version, packet) == (b"\1", digest(self.body(names)))
        assert [error[0] for error in errors] == [self.letters[name].hash for name in refused.split(",") if name]
        for _, number, reason in errors:
            assert int.from_bytes(number, "big") in {packets.TIME_ERROR, packets.OTHER_ERROR}
            assert reason.decode()

    def messages(self, name: str, names: str) -> None:
        envelopes = packets.read_envelopes(self.next(name, packets.MESSAGES))
        assert [envelope.raw for envelope in envelopes] == [self.letters[name].raw for name in names.split()]

    def cut(self, name: str, reason: str) -> None:
        assert self.reasons.get(name) == int(reason, 16)

    async def do_compare_archive(self, names: str) -> None:
        assert await self.here.archive.hashes() == [self.letters[name].hash for name in names.split()]


LINES: tuple[tuple[str, Callable[..., Any]], ...] = (
    (r"letter (\w+) ?(.*)", Replay.write),
    (r"([\w, ]+) connects? ?(.*)", Replay.do_connect),
    (r"([\w, ]+) enters?", Replay.do_enter),
    (r"(\w+)> (.*)", Replay.do_say),
    (r"(\w+) lost", Replay.do_lose),
    (r"@ (\d+)s", Replay.do_wait),
    (r"(full|room)", Replay.do_fill),
    (r"(\w+)< status (.*)", Replay.status),
    (r"(\w+)< ack ?(.*)", Replay.ack),
    (r"(\w+)< response ?(.*)", Replay.response),
    (r"(\w+)< messages (.*)", Replay.messages),
    (r"(\w+) cut (\w+)", Replay.cut),
    (r"archived ?(.*)", Replay.do_compare_archive),
)


def topics(text: str) -> frozenset[bytes]:
    return frozenset(bytes.fromhex(topic) for topic in text.split(",") if topic)


def digest(body: bytes) -> bytes:
    return bytes(keccak_oracle.new(digest_bits=256, data=body).digest())


def options(text: str, base: Options) -> Options:
    values: dict[str, Any] = {name: getattr(base, name) for name in Options.__struct_fields__}
    for word in text.split():
        key, _, value = word.partition("=")
        match key:
            case "pow":
                values[key] = float(value)
            case "light" | "confirmations":
                values[key] = value != "no"
            case "topics":
                values[key] = topics(value)
            case "packets" | "bytes":
                values[key] = (int(value),) * 3
            case "bloom":
                filters = {"full": bloom.ALL_BITS, "none": 0}
                values[key] = filters[value] if value in filters else bloom.filter_of(topics(value))
            case "overwritten":
                values["bloom"] = bloom.required_bits(bytes.fromhex(value))
            case _:
                raise AssertionError(f"no such option: {key}")
    return Options(**values)


SCRIPTS = sorted((Path(__file__).parents[1] / "scripts" / "waku").glob("*.txt"))


@pytest.mark.parametrize("script", [path.read_text() for path in SCRIPTS], ids=[path.stem for path in SCRIPTS])
async def test_over_sockets(script: str, tmp_path: Path) -> None:
    lines = [line.strip() for line in script.splitlines()]
    values = dict(line.removeprefix("option ").split("=", 1) for line in lines if line.startswith("option "))
    limits = Limits(**{name: int(value) for name, value in values.items() if name in Limits.__struct_fields__})
    policy = Policy(
        min_pow=float(values.get("min_pow", 2e-6)),
        max_ttl=int(values.get("max_ttl", 7 * 86400)),
        max_size=limits.envelope_bytes,
    )
    retention = int(values["retention"]) if "retention" in values else None
    terms = ArchiveTerms(retention=retention, topics=topics(values.get("topics", "")) or None)
    async with inside(tmp_path, policy=policy, terms=terms, limits=limits) as here:
        replay = Replay(here)
        for number, line in enumerate(lines, 1):
            if line and not line.startswith(("#", "option ")):
                try:
                    await replay.do(line)
                except AssertionError as error:
                    error.add_note(f"line {number}: {line}")
                    raise
        assert not any(replay.heard.values()), "more came than the script names"
