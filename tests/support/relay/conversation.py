r"""Conversations with the transit relay: what connections send and receive, as a script for any relay.

    # the first line is a sentence: what this conversation shows
    # reference differs: why 0.5.0 does not pass this script (absent where it does)
    # reference fails at: the line that shows it (absent if chance decides)
    option limit.NAME=N                    also blur=N
    a, b connect                           also: a connects from 192.0.2.1; else the address is not counted
    a> please relay {t:64} for side {a:16}\n      a sends this, in one segment, with Python's escapes. {NAME:N} are N
                                           characters, the same in the whole script
    a< ok\n                                the next bytes that a gets
    a or b< ok\n                           one of them gets these bytes
    a, b closed                            the relay has closed them, and they got no more bytes
    a or b closed                          it has closed one of them that was not known to be closed
    a closes                               a closes its connection; also shuts (only its writing), resets
    @ 5s                                   the clocks move
    drain                                  the relay is about to stop
    counts waiting=1 pairs=0               what the relay has, if it can tell; also new
    refusals address_waiting=1             what the relay has refused until now, if it can tell
    usage happy bytes=5 waiting=5 total=9  the next usage record with this result; also started, from the start of the
                                           clocks. Worlds in real time compare only whether there is a time

Nothing may come that the script does not name. At the end all connections are closed, and no usage record remains.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from restante.relay.core.limits import UNLIMITED, Limits
from support.relay.worlds import World

SCRIPTS = Path(__file__).parents[2] / "scripts" / "relay"

_FORMS = {
    "differs": r"# reference differs: (.*)",
    "fails": r"# reference fails at: (.*)",
    "title": r"# (.*)",
    "option": r"option ([\w.]+)=(\d+)",
    "says": r"(\w+)> (.*)",
    "hears": r"(\w+(?: or \w+)*)< (.*)",
    "closed": r"(\w+(?:(?:, | or )\w+)*) closed",
    "connect": r"(\w+(?:, \w+)*) connects?(?: from (\S+))?",
    "leave": r"(\w+(?:, \w+)*) (close|shut|reset)s?",
    "wait": r"@ (\d+)s",
    "drain": r"drain",
    "counts": r"counts (.*)",
    "refusals": r"refusals (.*)",
    "usage": r"usage (\w+) ?(.*)",
}
_FILLER = re.compile(r"\{(\w+):(\d+)\}")
_TIMES = ("started", "waiting", "total")


class ScriptLine(NamedTuple):
    number: int
    text: str
    kind: str
    parts: tuple[str, ...]


class Script(NamedTuple):
    name: str
    title: str
    reference_differs: str | None
    reference_fails_at: str | None
    limits: Limits
    blur: int
    lines: list[ScriptLine]


def read_scripts() -> list[Script]:
    return [_read_script(path) for path in sorted(SCRIPTS.glob("*.txt"))]


def _read_script(path: Path) -> Script:
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if text.strip():
            matches = ((kind, re.fullmatch(form, text.strip())) for kind, form in _FORMS.items())
            kind, match = next((kind, match) for kind, match in matches if match)
            lines.append(ScriptLine(number, text.strip(), kind, match.groups()))
    header = {line.kind: line.parts[0] for line in reversed(lines) if line.kind in {"differs", "fails", "title"}}
    options = {line.parts[0]: int(line.parts[1]) for line in lines if line.kind == "option"}
    limits = {name.removeprefix("limit."): value for name, value in options.items() if name.startswith("limit.")}
    return Script(
        path.stem,
        header["title"],
        header.get("differs"),
        header.get("fails"),
        replace(UNLIMITED, **limits),
        options.get("blur", 0),
        [line for line in lines if line.kind not in {*header, "option"}],
    )


class Mismatch(AssertionError):  # noqa: N818 - what it is
    """What happened is not what the script says, at this line of it."""

    def __init__(self, script: Script, line: ScriptLine | None, why: object) -> None:
        self.line = "the end" if line is None else line.text
        super().__init__(f"{script.name}.txt:{line.number if line else 0}: {self.line}\n    {why}")


@dataclass
class ScriptReplay:
    script: Script
    world: World
    impatient_at: str | None = None
    """A line at which a world in real time does not wait: it is expected to fail."""
    left: set[str] = field(default_factory=set)
    """Connections that are known to have been closed, by either side."""
    seen_usage: list[int] = field(default_factory=list)

    async def run(self) -> None:
        for line in self.script.lines:
            await self._do(line)
            await self.world.settle()
            try:
                await self._check(line)
            except AssertionError as error:
                raise Mismatch(self.script, line, error) from error
        try:
            self._check_end()
        except AssertionError as error:
            raise Mismatch(self.script, None, error) from error

    async def _do(self, line: ScriptLine) -> None:
        match line.kind, line.parts:
            case "connect", (names, address):
                for name in names.split(", "):
                    await self.world.connect(name, address)
            case "says", (name, text):
                self.world.send(name, self._bytes(text))
            case "leave", (names, how):
                for name in names.split(", "):
                    self.world.leave(name, how)
                    if how != "shut":
                        self.left.add(name)
            case "wait", (seconds,):
                self.world.advance(float(seconds))
            case "drain", _:
                self.world.drain()

    async def _check(self, line: ScriptLine) -> None:
        match line.kind, line.parts:
            case "hears", (names, text):
                await self._check_received(line, names.split(" or "), self._bytes(text))
            case "closed", (names,) if " or " in names:
                await self._check_closed(line, names.split(" or "))
            case "closed", (names,):
                for name in names.split(", "):
                    await self._check_closed(line, [name])
            case "counts", (pairs,):
                counts = self.world.counts()
                assert counts is None or _numbers(pairs).items() <= counts.items(), f"there are {counts}"
            case "refusals", (pairs,):
                refusals = self.world.refusals()
                assert refusals is None or refusals == _numbers(pairs), f"there are {refusals}"
            case "usage", (result, pairs):
                await self._check_usage(line, {"result": result, **_numbers(pairs)})

    async def _check_received(self, line: ScriptLine, names: list[str], expected: bytes) -> None:
        inboxes = [self.world.inboxes[name] for name in names]

        def decided() -> bool:
            prefixes = (expected.startswith(inbox.received) and not inbox.closed for inbox in inboxes)
            return any(inbox.received.startswith(expected) for inbox in inboxes) or not any(prefixes)

        await self._until(line, decided)
        for inbox in inboxes:
            if inbox.received.startswith(expected):
                del inbox.received[: len(expected)]
                return
        raise AssertionError(f"received: {[bytes(inbox.received[:200]) for inbox in inboxes]}")

    async def _check_closed(self, line: ScriptLine, names: list[str]) -> None:
        def closed() -> list[str]:
            return [name for name in names if self.world.inboxes[name].closed and name not in self.left]

        await self._until(line, lambda: bool(closed()))
        assert closed(), f"{names} are open"
        name = closed()[0]
        assert not self.world.inboxes[name].received, f"{name} got {bytes(self.world.inboxes[name].received)!r}"
        self.left.add(name)

    async def _check_usage(self, line: ScriptLine, expected: dict[str, Any]) -> None:
        def look() -> int | None:
            unseen = ((index, record) for index, record in enumerate(self.world.usage()) if self._unseen(index))
            return next((index for index, record in unseen if self._agrees(record, expected)), None)

        await self._until(line, lambda: look() is not None)
        index = look()
        assert index is not None, f"the records are {self.world.usage()}"
        self.seen_usage.append(index)

    def _unseen(self, index: int) -> bool:
        return index not in self.seen_usage

    def _agrees(self, record: dict[str, Any], expected: dict[str, Any]) -> bool:
        if self.world.exact:
            return expected.items() <= record.items()
        for name in _TIMES:
            if name in expected and (expected[name] is None) != (record[name] is None):
                return False
        return all(record[name] == value for name, value in expected.items() if name not in _TIMES)

    async def _until(self, line: ScriptLine, holds: Callable[[], bool]) -> None:
        if line.text != self.impatient_at:
            await self.world.until(line.text, holds)

    def _check_end(self) -> None:
        inboxes = self.world.inboxes.items()
        rest = {name: bytes(inbox.received) for name, inbox in inboxes if inbox.received and name not in self.left}
        assert not rest, f"more was received than the script names: {rest}"
        remaining = self.world.inboxes.keys() - self.left
        assert not remaining, f"the script does not say how these end: {remaining}"
        more = [record for index, record in enumerate(self.world.usage()) if self._unseen(index)]
        assert not more, f"more usage records than the script names: {more}"

    def _bytes(self, text: str) -> bytes:
        return _FILLER.sub(self._filler, text).encode().decode("unicode_escape").encode("latin-1")

    def _filler(self, match: re.Match[str]) -> str:
        """Return as many hexadecimal digits as asked for, which depend on the name, the script and the world."""
        seed = f"{match[1]} {self.script.name} {self.world.nonce}"
        digits = (digit for turn in range(1 << 20) for digit in sha256(f"{turn} {seed}".encode()).hexdigest())
        return "".join(islice(digits, int(match[2])))


def _numbers(pairs: str) -> dict[str, float | None]:
    """Read key=number and key=none."""
    values = dict(pair.split("=") for pair in pairs.split())
    return {name: None if value == "none" else float(value) for name, value in values.items()}
