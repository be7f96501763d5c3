"""Conversations with the Mailserver, as scripts: replayed on the cores alone, and over sockets.

    # the first line is a sentence: what this conversation shows
    # needs a socket: why (absent where the cores alone can show it)
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import rlp as oracle
from Crypto.Hash import keccak as keccak_oracle

from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol import packets
from restante.waku.protocol.packets import Options
from support.waku.letters import letter, mined
from support.waku.raw_peer import FULL_NODE, Packet

SCRIPTS = Path(__file__).parents[2] / "scripts" / "waku"


@dataclass
class WakuScript:
    name: str
    title: str = ""
    needs_a_socket: bool = False
    options: dict[str, str] = field(default_factory=dict)
    lines: list[tuple[int, str]] = field(default_factory=list)


def read_scripts() -> list[WakuScript]:
    return [read_script(path) for path in sorted(SCRIPTS.glob("*.txt"))]


def read_script(path: Path) -> WakuScript:
    script = WakuScript(path.stem)
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        line = raw.strip()
        if line.startswith("# needs a socket:"):
            script.needs_a_socket = True
        elif line.startswith("#"):
            script.title = script.title or line[1:].strip()
        elif line.startswith("option "):
            name, _, value = line.removeprefix("option ").partition("=")
            script.options[name] = value
        elif line:
            script.lines.append((number, line))
    assert script.title, f"{path}: the first line is a sentence"
    return script


class NodeUnderTest(Protocol):
    """A node, and the peers it has."""

    @property
    def now(self) -> int: ...
    async def enter(self, name: str) -> None: ...
    async def say(self, name: str, *packets: Packet) -> None:
        """Say these at once: the node reads them together."""

    async def lose(self, name: str) -> None: ...
    async def advance(self, seconds: int) -> None: ...
    def fill(self, full: bool) -> None: ...
    async def packets(self) -> dict[str, list[Packet]]:
        """Return what each peer got since the last call, all that was said being done."""

    async def cut(self, name: str) -> int | None:
        """Return the reason with which the node ended a connection; None: it did not."""

    async def archived(self) -> list[bytes]: ...


class WakuMismatch(AssertionError):  # noqa: N818 - what it is
    """What came is not what the script says, at this line of it."""


class WakuReplay:
    """One replay of a script on a world."""

    def __init__(self, script: WakuScript, world: NodeUnderTest) -> None:
        self.script = script
        self.world = world
        self.letters: dict[str, Envelope] = {}
        self.heard: dict[str, list[Packet]] = defaultdict(list)

    async def whole(self) -> None:
        for number, line in self.script.lines:
            try:
                await self._do(line)
                for name, packets in (await self.world.packets()).items():
                    self.heard[name] += packets
                await self._check(line)
            except AssertionError as error:
                raise WakuMismatch(f"{self.script.name}.txt:{number}: {line}\n    {error}") from error
        left = {name: packets for name, packets in self.heard.items() if packets}
        if left:
            raise WakuMismatch(f"{self.script.name}.txt: more came than the script names: {left}")

    async def _do(self, line: str) -> None:
        """Do what a line does to the node."""
        world = self.world
        if line.startswith("letter "):
            self._write(line)
        elif found := _CONNECT.fullmatch(line):
            for name in _names(found[1]):
                await world.enter(name)
                self.heard[name].clear()
                await world.say(name, (packets.STATUS, packets.write_options(_options(found[2], FULL_NODE))))
        elif found := re.fullmatch(r"([\w, ]+) enters?", line):
            for name in _names(found[1]):
                await world.enter(name)
        elif found := re.fullmatch(r"(\w+)> (.*)", line):
            await world.say(found[1], *(self._packet(*each.partition(" ")[::2]) for each in found[2].split(" & ")))
        elif found := re.fullmatch(r"([\w, ]+) lost", line):
            for name in _names(found[1]):
                await world.lose(name)
        elif found := re.fullmatch(r"@ (\d+)s", line):
            await world.advance(int(found[1]))
        elif line in {"full", "room"}:
            world.fill(line == "full")

    async def _check(self, line: str) -> None:
        """Compare what a line expects."""
        if found := re.fullmatch(r"(\w+)< (\w+) ?(.*)", line):
            assert self.heard[found[1]], f"{found[1]} got nothing"
            code, payload = self.heard[found[1]].pop(0)
            _EXPECTED[found[2]](self, code, payload, found[3])
        elif found := _CONNECT.fullmatch(line):
            for name in _names(found[1]):
                assert self.heard[name].pop(0)[0] == packets.STATUS
        elif found := re.fullmatch(r"(\w+) cut (\w+)", line):
            reason = await self.world.cut(found[1])
            assert reason == int(found[2], 16), f"the reason is {reason}"
        elif line.startswith("archived"):
            names = {each.hash: name for name, each in self.letters.items()}
            there = [names[digest] for digest in await self.world.archived()]
            assert there == line.split()[1:], f"there are {there}"
        else:
            assert _DOING.match(line), "no such line"

    # ── envelopes and packets ────────────────────────────────────────────────────────────────────

    def _write(self, line: str) -> None:
        _, name, *fields = line.split()
        values: dict[str, Any] = {"number": len(self.letters)}
        condition: Callable[[float], bool] | None = None
        for each in fields:
            if found := re.fullmatch(r"pow(>=|<)(.+)", each):
                bound = float(found[2])
                condition = bound.__le__ if found[1] == ">=" else bound.__gt__
            else:
                key, _, value = each.partition("=")
                values[key] = bytes.fromhex(value) if key == "topic" else int(value)
        envelope = letter(now=self.world.now, **values)
        self.letters[name] = mined(condition, envelope) if condition else envelope

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
            return code, packets.write_options(_options(rest, Options()))
        code_text, _, body = rest.partition(" ")
        return int(code_text), bytes.fromhex(body) if kind == "packet" else bytes(int(body))

    def _is_status(self, code: int, payload: bytes, rest: str) -> None:
        assert code == packets.STATUS
        assert payload.hex() == packets.write_options(_options(rest, Options())).hex()

    def _is_ack(self, code: int, payload: bytes, rest: str) -> None:
        assert code == packets.BATCH_ACK, f"got {code}: {payload.hex()}"
        assert payload == oracle.encode(_hash(self._body(rest)))

    def _is_response(self, code: int, payload: bytes, rest: str) -> None:
        assert code == packets.MESSAGE_RESPONSE, f"got {code}: {payload.hex()}"
        names, _, refused = rest.partition(" refused=")
        version, (packet, errors) = oracle.decode(payload)
        assert (version, packet) == (b"\1", _hash(self._body(names)))
        wanted = [self.letters[name].hash for name in refused.split(",") if name]
        assert [error[0] for error in errors] == wanted, f"errors are {errors}"
        for _, number, words in errors:
            assert int.from_bytes(number, "big") in {packets.TIME_ERROR, packets.OTHER_ERROR}
            assert words.decode()

    def _is_messages(self, code: int, payload: bytes, rest: str) -> None:
        assert code == packets.MESSAGES, f"got {code}: {payload.hex()}"
        names = {each.raw: name for name, each in self.letters.items()}
        got = [names[each.raw] for each in packets.read_envelopes(payload)]
        assert got == rest.split(), f"got {got}"


_EXPECTED: dict[str, Callable[[WakuReplay, int, bytes, str], None]] = {
    "status": WakuReplay._is_status,
    "ack": WakuReplay._is_ack,
    "response": WakuReplay._is_response,
    "messages": WakuReplay._is_messages,
}

_CONNECT = re.compile(r"([\w, ]+) connects?\b ?(.*)")
_DOING = re.compile(r"letter |[\w, ]+ enters?$|\w+> |[\w, ]+ lost$|@ \d+s$|full$|room$")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _topics(text: str) -> list[bytes]:
    return [bytes.fromhex(topic) for topic in text.split(",") if topic]


def _hash(body: bytes) -> bytes:
    return bytes(keccak_oracle.new(digest_bits=256, data=body).digest())


def _options(text: str, base: Options) -> Options:
    """Read what a Status names; what it does not is as in `base`."""
    values: dict[str, Any] = {name: getattr(base, name) for name in Options.__struct_fields__}
    for each in text.split():
        key, _, value = each.partition("=")
        match key:
            case "pow":
                values[key] = float(value)
            case "light" | "confirmations":
                values[key] = value != "no"
            case "topics":
                values[key] = frozenset(_topics(value))
            case "packets" | "bytes":
                values[key] = (int(value),) * 3
            case "bloom":
                values[key] = (
                    {"full": bloom.ALL_BITS, "none": 0}[value]
                    if value in {"full", "none"}
                    else bloom.of(_topics(value))
                )
            case "overwritten":
                values["bloom"] = bloom.kept(bytes.fromhex(value))
            case _:
                raise AssertionError(f"no such option: {key}")
    return Options(**values)
