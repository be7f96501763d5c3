"""Conversations: what is said on the wire, as a script that any server can be held to.

    # the first line is a sentence: what this conversation shows
    # reference differs: why 0.8.0 does not pass this script (absent where it does)
    # reference fails at: the line that shows it
    option no_list                         the server is started with it (no_list, blur=N, motd=TEXT, limit.NAME=N,
                                           permission=MODE, bits=N, parting=SECONDS; address=IP is
                                           where all clients come from)
    given a, b bound to app x              two connections, each its own side, named like it
    a, b connect                           their welcomes are taken for granted; `a connects and looks` keeps it
    a> claim nameplate=4 id=7              a says this; its ack is taken for granted and checked
    a> add phase:=5 body=00                key=word, key="some words", key:=JSON
    a>> {"no": "type"}                     a says this very text; nothing is taken for granted
    a< claimed mailbox=$m                  the next frame a gets, where the keys named are equal; $m is bound or equal
    a cut 1007                             the server closed it with this code
    a lost                                 a is gone
    @ 660s                                 the clocks move
    prune                                  idle mailboxes go
    restart                                the server stops and starts; all connections are lost
    rows nameplates=0 messages=2           what the server holds
    usage mailbox result=happy total=60    the next usage record of its kind

Nothing may come that the script does not name, and at the end no usage record is left over.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from restante.mailbox.core.limits import UNLIMITED
from support.mailbox.givens import Frame, Inbox, Options
from support.mailbox.tables import shown
from support.mailbox.worlds import World

SCRIPTS = Path(__file__).parents[2] / "scripts" / "mailbox"

_FORMS = {
    "differs": re.compile(r"# reference differs: (.*)"),
    "fails": re.compile(r"# reference fails at: (.*)"),
    "title": re.compile(r"# (.*)"),
    "option": re.compile(r"option ([\w.]+)=?(.*)"),
    "raw": re.compile(r"(\w+)>>(.*)"),
    "says": re.compile(r"(\w+)> ?(.*)"),
    "hears": re.compile(r"(\w+)< (.*)"),
    "given": re.compile(r"given ([\w, ]+) bound to app (\S+?)(?: as side (\S+))?"),
    "connect": re.compile(r"([\w, ]+) connects?( and looks)?"),
    "cut": re.compile(r"(\w+) cut (\d+)"),
    "lost": re.compile(r"([\w, ]+) lost"),
    "wait": re.compile(r"@ (-?\d+)s"),
    "prune": re.compile(r"prune"),
    "restart": re.compile(r"restart"),
    "rows": re.compile(r"rows (.*)"),
    "usage": re.compile(r"usage (\w+) (.*)"),
}


class ScriptLine(NamedTuple):
    number: int
    text: str
    kind: str
    parts: tuple[Any, ...]


class Script(NamedTuple):
    name: str
    title: str
    reference_differs: str | None
    reference_fails_at: str | None
    options: Options
    lines: list[ScriptLine]


def read_scripts() -> list[Script]:
    return [_read_script(path) for path in sorted(SCRIPTS.glob("*.txt"))]


def _read_script(path: Path) -> Script:
    lines = []
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        if text := raw.strip():
            kind, match = next((kind, match) for kind, form in _FORMS.items() if (match := form.fullmatch(text)))
            lines.append(ScriptLine(number, text, kind, match.groups()))
    header = {line.kind: line.parts[0] for line in reversed(lines) if line.kind in {"differs", "fails", "title"}}
    options = dict(line.parts for line in lines if line.kind == "option")
    steps = [line for line in lines if line.kind not in {*header, "option"}]
    return Script(path.stem, header["title"], header.get("differs"), header.get("fails"), _chosen(options), steps)


def _chosen(options: dict[str, str]) -> Options:
    limits = {name.removeprefix("limit."): int(value) for name, value in options.items() if name.startswith("limit.")}
    types = {"blur": int, "bits": int, "parting": float, "permission": str, "motd": str, "error": str, "address": str}
    others: dict[str, Any] = {name: types[name](options[name]) for name in types.keys() & options.keys()}
    others["limits"] = replace(UNLIMITED, **limits)
    # Who is gone is gone: no grace period.
    return Options(in_grace_period=False, lists="no_list" not in options, **others)


class Mismatch(AssertionError):  # noqa: N818 - what it is
    """What came is not what the script says, at this line of it."""

    def __init__(self, script: Script, line: ScriptLine | None, why: object) -> None:
        self.line = "the end" if line is None else line.text
        super().__init__(f"{script.name}.txt:{line.number if line else 0}: {self.line}\n    {why}")


@dataclass
class ScriptReplay:
    script: Script
    world: World
    variables: dict[str, Any] = field(default_factory=dict)
    inboxes: dict[str, Inbox] = field(default_factory=dict)
    heard: dict[str, list[Frame]] = field(default_factory=lambda: defaultdict(list))
    seen_usage: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    gathering: bool = False

    def one_by_one(self) -> None:
        for line in self.script.lines:
            self._do(line)
            self._listen()
            self._compare([line])
        self._nothing_left()

    def as_batches(self) -> None:
        """Say all that stands between two checks of the server at once; needs the variables of another replay."""
        lines = list(self.script.lines)
        while lines:
            end = next((i for i, line in enumerate(lines) if self._ends_batch(line)), len(lines))
            batch, last, lines = lines[:end], lines[end : end + 1], lines[end + 1 :]
            self.world.gather()
            self.gathering = True
            for line in batch:
                self._do(line)
            self.gathering = False
            self._listen()
            for line in last:
                self._do(line)
                self._listen()
            self._compare(batch + last)
        self._nothing_left()

    def _compare(self, lines: list[ScriptLine]) -> None:
        for line in lines:
            try:
                self._check(line)
            except AssertionError as error:
                raise Mismatch(self.script, line, error) from error

    def _ends_batch(self, line: ScriptLine) -> bool:
        if line.kind == "lost":  # over a real socket, who is gone cannot be told any more
            return not self.world.tells_the_lost
        return line.kind in {"prune", "restart", "rows", "usage"}

    def _listen(self) -> None:
        self.world.flush()
        self.world.check()
        for name, inbox in self.inboxes.items():
            self.heard[name] += inbox.frames
            inbox.frames = []

    def _send(self, name: str, text: str | None) -> None:
        """Say something; None: lose the connection."""
        if text is None:
            self.world.lose(self.inboxes[name])
        else:
            self.world.say(self.inboxes[name], text)
        if not self.gathering:
            self.world.flush()

    def _do(self, line: ScriptLine) -> None:
        match line.kind, line.parts:
            case "raw", (name, text):
                self._send(name, text.strip())
            case "says", (name, text):
                self._send(name, json.dumps(self._message(text)))
            case "given", (names, app, side):
                for name in _names(names):
                    self.inboxes[name] = self.world.connect()
                    self._send(name, json.dumps({"type": "bind", "appid": app, "side": side or name, "id": "bind"}))
            case "connect", (names, _):
                for name in _names(names):
                    self.inboxes[name] = self.world.connect()
            case "lost", (names,):
                for name in _names(names):
                    self._send(name, None)
            case "wait", (seconds,):
                self.world.advance(float(seconds))
            case "prune", _:
                self.world.prune()
            case "restart", _:
                self.world.restart()

    def _check(self, line: ScriptLine) -> None:
        match line.kind, line.parts:
            case "says", (name, text):
                self._expect(name, {"type": "ack", "id": self._message(text).get("id")})
            case "hears", (name, text):
                self._expect(name, self._message(text))
            case "given", (names, _, _):
                for name in _names(names):
                    self._expect(name, {"type": "welcome"})
                    self._expect(name, {"type": "ack", "id": "bind"})
            case "connect", (names, None):
                for name in _names(names):
                    self._expect(name, {"type": "welcome"})
            case "cut", (name, expected):
                code = self.world.ended(self.inboxes[name])
                assert code == int(expected), f"closed with {code}"
            case "lost", (names,):
                for name in _names(names):
                    assert not self.heard[name], f"{name} was told more: {self.heard[name]}"
            case "rows", (pairs,):
                rows, wanted = self.world.counts(), _pairs(pairs)
                assert {key: rows[key] for key in wanted} == wanted, f"there are {rows}"
            case "usage", (kind, pairs):
                self._expect_usage(kind, _pairs(pairs), shown(self.world.usage()))

    def _expect(self, name: str, wanted: Frame) -> None:
        assert self.heard[name], f"{name} got nothing"
        frame = self.heard[name].pop(0)
        for key, value in wanted.items():
            assert key in frame, f"{name} got {frame}"
            if isinstance(value, str) and value.startswith("$"):
                value = self.variables.setdefault(value, frame[key])  # noqa: PLW2901
            assert frame[key] == value, f"{name} got {frame}"
        assert isinstance(frame.get("server_tx"), float), f"no server_tx in {frame}"

    def _expect_usage(self, kind: str, wanted: dict[str, Any], usage: dict[str, list[dict[str, Any]]]) -> None:
        records, seen = usage[kind], self.seen_usage[kind]
        assert len(records) > seen, f"no more records of {kind}: {records}"
        self.seen_usage[kind] += 1
        record = records[seen]
        assert {key: record[key] for key in wanted} == wanted, f"the record is {record}"

    def _nothing_left(self) -> None:
        left = {name: frames for name, frames in self.heard.items() if frames}
        if left:
            raise Mismatch(self.script, None, f"more came than the script names: {left}")
        usage = shown(self.world.usage())
        for kind in ("nameplate", "mailbox"):
            more = usage[kind][self.seen_usage[kind] :]
            if more:
                raise Mismatch(self.script, None, f"more usage records of {kind} than the script names: {more}")

    def _message(self, text: str) -> Frame:
        kind, _, rest = text.partition(" ")
        values = {key: self.variables.get(v, v) if isinstance(v, str) else v for key, v in _pairs(rest).items()}
        return {"type": kind, **values}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _pairs(text: str) -> dict[str, Any]:
    """Read key=word, key="some words" and key:=JSON."""
    pairs: dict[str, Any] = {}
    position = 0
    while position < len(text):
        key = _KEY.match(text, position)
        assert key, f"'{text[position:]}' is not key=value"
        position = key.end()
        if key[2] == ":=" or text[position : position + 1] == '"':
            pairs[key[1]], position = _JSON.raw_decode(text, position)
        else:
            word = _WORD.match(text, position)
            assert word
            pairs[key[1]], position = word[0], word.end()
    return pairs


_KEY = re.compile(r"\s*([\w-]+)(:?=)")
_WORD = re.compile(r"\S*")
_JSON = json.JSONDecoder()
