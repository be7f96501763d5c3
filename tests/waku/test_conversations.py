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

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass
class Script:
    name: str
    options: dict[str, str] = field(default_factory=dict)
    lines: list[tuple[int, str]] = field(default_factory=list)


def read_script(path: Path) -> Script:
    script = Script(path.stem)
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        line = raw.strip()
        if line.startswith("option "):
            name, _, value = line.removeprefix("option ").partition("=")
            script.options[name] = value
        elif line and not line.startswith("#"):
            script.lines.append((number, line))
    return script


class Replay:
    """A replay of a script on a node."""

    def __init__(self, script: Script, here: Inside, pieces: int | None = None) -> None:
        self.script = script
        self.here = here
        self.pieces = pieces
        """Bytes that are written at a time, each in a turn of the loop of its own."""
        self.peers: dict[str, RawPeer] = {}
        self.reasons: dict[str, int | None] = {}
        self.letters: dict[str, Envelope] = {}
        self.heard: dict[str, list[Packet]] = defaultdict(list)

    async def run(self) -> None:
        for number, line in self.script.lines:
            try:
                await self._do(line)
                await self._listen()
                await self._check(line)
            except AssertionError as error:
                error.add_note(f"{self.script.name}.txt:{number}: {line}")
                raise
        unexpected = {name: packets for name, packets in self.heard.items() if packets}
        assert not unexpected, f"{self.script.name}.txt: more came than the script names"

    async def _do(self, line: str) -> None:
        """Do what a line does to the node."""
        if line.startswith("letter "):
            self._write(line)
        elif match := CONNECT.fullmatch(line):
            for name in names(match[1]):
                self.peers[name] = await self.here.enter()
                self.heard[name].clear()
                await self._say(name, (packets.STATUS, packets.write_options(options(match[2], FULL_NODE))))
        elif match := re.fullmatch(r"([\w, ]+) enters?", line):
            for name in names(match[1]):
                self.peers[name] = await self.here.enter()
        elif match := re.fullmatch(r"(\w+)> (.*)", line):
            said = [self._packet(*packet.partition(" ")[::2]) for packet in match[2].split(" & ")]
            await self._say(match[1], *said)
        elif match := re.fullmatch(r"([\w, ]+) lost", line):
            for name in names(match[1]):
                await self._lose(name)
        elif match := re.fullmatch(r"@ (\d+)s", line):
            self.here.clock.now += int(match[1])
            self.here.node.tick()
        elif line in {"full", "room"}:
            self.here.archive.full = line == "full"

    async def _say(self, name: str, *packets: Packet) -> None:
        data = self.peers[name].sealed(packets)
        size = self.pieces or len(data)
        for at in range(0, len(data), size):
            self.peers[name].writer.write(data[at : at + size])
            await asyncio.sleep(0)

    async def _lose(self, name: str) -> None:
        connections = len(self.here.node.connections)
        self.peers.pop(name).cut()
        await self.here.until("the loss of a connection", lambda: len(self.here.node.connections) < connections)

    async def _listen(self) -> None:
        """Take what each peer got, when all that was said is done."""
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

    async def _check(self, line: str) -> None:
        """Compare what a line expects."""
        if match := re.fullmatch(r"(\w+)< (\w+) ?(.*)", line):
            assert self.heard[match[1]], f"{match[1]} got nothing"
            code, payload = self.heard[match[1]].pop(0)
            EXPECTED[match[2]](self, code, payload, match[3])
        elif match := CONNECT.fullmatch(line):
            for name in names(match[1]):
                assert self.heard[name].pop(0)[0] == packets.STATUS
        elif match := re.fullmatch(r"(\w+) cut (\w+)", line):
            assert self.reasons.get(match[1]) == int(match[2], 16)
        elif line.startswith("archived"):
            by_hash = {envelope.hash: name for name, envelope in self.letters.items()}
            assert [by_hash[digest] for digest in await self.here.archive.hashes()] == line.split()[1:]
        else:
            assert DOING.match(line), "no such line"

    # ── envelopes and packets ────────────────────────────────────────────────────────────────────

    def _write(self, line: str) -> None:
        _, name, *fields = line.split()
        values: dict[str, Any] = {"number": len(self.letters)}
        enough: Callable[[float], bool] = lambda _: True  # noqa: E731
        for word in fields:
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

    def _body(self, names: str) -> bytes:
        """Write the body of Messages, by another library than ours."""
        if names.startswith("of "):
            return bytes.fromhex(names.removeprefix("of "))
        letters = [self.letters[name] for name in names.split()]
        return bytes(oracle.encode([[e.expiry, e.ttl, e.topic, e.data, e.nonce] for e in letters]))

    def _packet(self, kind: str, rest: str) -> Packet:
        if kind == "messages":
            return packets.MESSAGES, self._body(rest)
        if kind in {"status", "update"}:
            code = packets.STATUS if kind == "status" else packets.STATUS_UPDATE
            return code, packets.write_options(options(rest, Options()))
        code_text, _, body = rest.partition(" ")
        return int(code_text), bytes.fromhex(body) if kind == "packet" else bytes(int(body))

    def _is_status(self, code: int, payload: bytes, rest: str) -> None:
        assert (code, payload.hex()) == (packets.STATUS, packets.write_options(options(rest, Options())).hex())

    def _is_ack(self, code: int, payload: bytes, rest: str) -> None:
        assert (code, payload) == (packets.BATCH_ACK, oracle.encode(digest(self._body(rest))))

    def _is_response(self, code: int, payload: bytes, rest: str) -> None:
        assert code == packets.MESSAGE_RESPONSE
        names, _, refused = rest.partition(" refused=")
        version, (packet, errors) = oracle.decode(payload)
        assert (version, packet) == (b"\1", digest(self._body(names)))
        assert [error[0] for error in errors] == [self.letters[name].hash for name in refused.split(",") if name]
        for _, number, reason in errors:
            assert int.from_bytes(number, "big") in {packets.TIME_ERROR, packets.OTHER_ERROR}
            assert reason.decode()

    def _is_messages(self, code: int, payload: bytes, rest: str) -> None:
        assert code == packets.MESSAGES
        by_raw = {envelope.raw: name for name, envelope in self.letters.items()}
        assert [by_raw[envelope.raw] for envelope in packets.read_envelopes(payload)] == rest.split()


EXPECTED: dict[str, Callable[[Replay, int, bytes, str], None]] = {
    "status": Replay._is_status,
    "ack": Replay._is_ack,
    "response": Replay._is_response,
    "messages": Replay._is_messages,
}
CONNECT = re.compile(r"([\w, ]+) connects?\b ?(.*)")
DOING = re.compile(r"letter |[\w, ]+ enters?$|\w+> |[\w, ]+ lost$|@ \d+s$|full$|room$")


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def topics(text: str) -> list[bytes]:
    return [bytes.fromhex(topic) for topic in text.split(",") if topic]


def digest(body: bytes) -> bytes:
    return bytes(keccak_oracle.new(digest_bits=256, data=body).digest())


def options(text: str, base: Options) -> Options:
    """Read what a Status names; what it does not is as in `base`."""
    values: dict[str, Any] = {name: getattr(base, name) for name in Options.__struct_fields__}
    for word in text.split():
        key, _, value = word.partition("=")
        match key:
            case "pow":
                values[key] = float(value)
            case "light" | "confirmations":
                values[key] = value != "no"
            case "topics":
                values[key] = frozenset(topics(value))
            case "packets" | "bytes":
                values[key] = (int(value),) * 3
            case "bloom":
                filters = {"full": bloom.ALL_BITS, "none": 0}
                values[key] = filters[value] if value in filters else bloom.of(topics(value))
            case "overwritten":
                values["bloom"] = bloom.kept(bytes.fromhex(value))
            case _:
                raise AssertionError(f"no such option: {key}")
    return Options(**values)


SCRIPTS = [read_script(path) for path in sorted((Path(__file__).parents[1] / "scripts" / "waku").glob("*.txt"))]
IN_PIECES = [script for script in SCRIPTS if not any(" & " in line for _, line in script.lines)]
QUICK_IN_PIECES = {"first_status_is_no_good", "large_packet", "relay_by_topic"}
"""A good greeting and a bad one, packets of all sizes."""


async def replay(script: Script, data: Path, pieces: int | None = None) -> None:
    values = script.options
    limits = Limits(**{name: int(value) for name, value in values.items() if name in Limits.__struct_fields__})
    policy = Policy(
        min_pow=float(values.get("min_pow", 2e-6)),
        max_ttl=int(values.get("max_ttl", 7 * 86400)),
        max_size=limits.envelope_bytes,
    )
    terms = ArchiveTerms(
        retention=int(values["retention"]) if "retention" in values else None,
        topics=frozenset(topics(values.get("topics", ""))) or None,
    )
    async with inside(data, policy=policy, terms=terms, limits=limits) as here:
        await Replay(script, here, pieces).run()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
async def test_over_sockets(script: Script, tmp_path: Path) -> None:
    await replay(script, tmp_path)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, marks=() if script.name in QUICK_IN_PIECES else pytest.mark.thorough)
        for script in IN_PIECES
    ],
    ids=lambda script: script.name,
)
async def test_over_sockets_in_pieces(script: Script, tmp_path: Path) -> None:
    """Bytes that are cut anywhere are the subject of test_devp2p.py and test_rlpx.py; this is the connection."""
    await replay(script, tmp_path, pieces=7)
