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
from typing import Any, cast

from restante.mailbox.protocol.hashcash import Mode
from support.mailbox.givens import Frame, Inbox, Options, limited
from support.mailbox.tables import shown
from support.mailbox.worlds import World

END = "the end"

AFTER_GRACE_PERIOD = Options(in_grace_period=False)
"""In scripts, who is gone is gone."""

SCRIPTS = Path(__file__).parents[2] / "scripts" / "mailbox"


@dataclass
class Script:
    name: str
    title: str
    reference_differs: str | None = None
    reference_fails_at: str | None = None
    options: Options = AFTER_GRACE_PERIOD
    lines: list[tuple[int, str]] = field(default_factory=list)


def read_scripts() -> list[Script]:
    return [read_script(path) for path in sorted(SCRIPTS.glob("*.txt"))]


def read_script(path: Path) -> Script:
    script = Script(path.stem, "")
    options: dict[str, str] = {}
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        line = raw.strip()
        if line.startswith("# reference differs:"):
            script.reference_differs = line.partition(":")[2].strip()
        elif line.startswith("# reference fails at:"):
            script.reference_fails_at = line.partition(":")[2].strip()
        elif line.startswith("#"):
            script.title = script.title or line[1:].strip()
        elif line.startswith("option "):
            name, _, value = line.removeprefix("option ").partition("=")
            options[name] = value
        elif line:
            script.lines.append((number, line))
    assert script.title, f"{path}: the first line is a sentence"
    script.options = _chosen(options, script.options)
    return script


def _chosen(said: dict[str, str], default: Options) -> Options:
    limits = {name.removeprefix("limit."): int(value) for name, value in said.items() if name.startswith("limit.")}
    return default._replace(
        blur=int(said.get("blur", default.blur)),
        lists="no_list" not in said,
        limits=limited(**limits),
        permission=cast("Mode", said.get("permission", default.permission)),
        bits=int(said.get("bits", default.bits)),
        motd=said.get("motd"),
        error=said.get("error"),
        parting=float(said.get("parting", default.parting)),
        address=said.get("address"),
    )


class Mismatch(AssertionError):  # noqa: N818 - what it is
    """What came is not what the script says, at this line of it."""

    def __init__(self, script: Script, number: int, line: str, why: object) -> None:
        super().__init__(f"{script.name}.txt:{number}: {line}\n    {why}")
        self.line = line


@dataclass
class Replay:
    """One replay of a script in a world."""

    script: Script
    world: World
    variables: dict[str, Any] = field(default_factory=dict)
    inboxes: dict[str, Inbox] = field(default_factory=dict)
    heard: dict[str, list[Frame]] = field(default_factory=lambda: defaultdict(list))
    seen_usage: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    gathering: bool = False

    def one_by_one(self) -> None:
        for number, line in self.script.lines:
            try:
                self._say(line)
                self._listen()
                self._check(line)
            except AssertionError as error:
                raise Mismatch(self.script, number, line, error) from error
        self._nothing_left()

    def as_batches(self) -> None:
        """Say all that stands between two checks of the server at once; needs the variables of another replay."""
        lines = list(self.script.lines)
        while lines:
            end = next((i for i, (_, line) in enumerate(lines) if self._ends_batch(line)), len(lines))
            batch, lines = lines[:end], lines[end:]
            self.world.gather()
            self.gathering = True
            for _, line in batch:
                self._say(line)
            self.gathering = False
            self._listen()
            if lines:
                batch.append(lines.pop(0))
                self._say(batch[-1][1])
                self._listen()
            for number, line in batch:
                try:
                    self._check(line)
                except AssertionError as error:
                    raise Mismatch(self.script, number, line, f"as a batch: {error}") from error
        self._nothing_left()

    def _ends_batch(self, line: str) -> bool:
        if line.endswith(" lost"):  # over a real socket, who is gone cannot be told any more
            return not self.world.tells_the_lost
        return line in {"prune", "restart"} or line.startswith(("rows", "usage"))

    def _listen(self) -> None:
        self.world.flush()
        for name, inbox in self.inboxes.items():
            self.heard[name] += inbox.frames
            inbox.frames = []

    def _flush_unless_gathering(self) -> None:
        if not self.gathering:
            self.world.flush()

    def _send(self, name: str, text: str) -> None:
        self.world.say(self.inboxes[name], text)
        self._flush_unless_gathering()

    def _say(self, line: str) -> None:
        """Do what a line does to the server."""
        world = self.world
        if found := re.fullmatch(r"(\w+)>>(.*)", line):
            self._send(found[1], found[2].strip())
        elif found := re.fullmatch(r"(\w+)> ?(.*)", line):
            self._send(found[1], json.dumps(self._message(found[2])))
        elif found := _GIVEN.fullmatch(line):
            for name in _names(found[1]):
                self.inboxes[name] = world.connect()
                bind = {"type": "bind", "appid": found[2], "side": found[3] or name, "id": "bind"}
                self._send(name, json.dumps(bind))
        elif found := re.fullmatch(r"([\w, ]+) connects?( and looks)?", line):
            for name in _names(found[1]):
                self.inboxes[name] = world.connect()
        elif found := re.fullmatch(r"([\w, ]+) lost", line):
            for name in _names(found[1]):
                world.lose(self.inboxes[name])
                self._flush_unless_gathering()
        elif found := re.fullmatch(r"@ (-?\d+)s", line):
            world.advance(float(found[1]))
        elif line == "prune":
            world.prune()
        elif line == "restart":
            world.restart()

    def _check(self, line: str) -> None:
        """Compare what a line expects."""
        if found := re.fullmatch(r"(\w+)>(?!>) ?(.*)", line):
            self._expect(found[1], {"type": "ack", "id": self._message(found[2]).get("id")})
        elif re.fullmatch(r"(\w+)>>(.*)", line) or line in {"prune", "restart"} or line.startswith("@"):
            pass
        elif found := re.fullmatch(r"(\w+)< (.*)", line):
            self._expect(found[1], self._message(found[2]))
        elif found := _GIVEN.fullmatch(line):
            for name in _names(found[1]):
                self._expect(name, {"type": "welcome"})
                self._expect(name, {"type": "ack", "id": "bind"})
        elif found := re.fullmatch(r"([\w, ]+) connects?( and looks)?", line):
            for name in _names(found[1]):
                if not found[2]:
                    self._expect(name, {"type": "welcome"})
        elif found := re.fullmatch(r"(\w+) cut (\d+)", line):
            code = self.world.ended(self.inboxes[found[1]])
            assert code == int(found[2]), f"closed with {code}"
        elif found := re.fullmatch(r"([\w, ]+) lost", line):
            for name in _names(found[1]):
                assert not self.heard[name], f"{name} was told more: {self.heard[name]}"
        elif line.startswith("rows "):
            rows, wanted = self.world.counts(), _pairs(line.removeprefix("rows "))
            assert {key: rows[key] for key in wanted} == wanted, f"there are {rows}"
        elif found := re.fullmatch(r"usage (\w+) (.*)", line):
            self._expect_usage(found[1], _pairs(found[2]), shown(self.world.usage()))
        else:
            raise AssertionError("no such line")

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
            raise Mismatch(self.script, 0, END, f"more came than the script names: {left}")
        usage = shown(self.world.usage())
        for kind in ("nameplate", "mailbox"):
            more = usage[kind][self.seen_usage[kind] :]
            if more:
                raise Mismatch(self.script, 0, END, f"more usage records of {kind} than the script names: {more}")

    def _message(self, text: str) -> Frame:
        kind, _, rest = text.partition(" ")
        return {"type": kind, **{key: self._value(value) for key, value in _pairs(rest).items()}}

    def _value(self, value: Any) -> Any:
        return self.variables.get(value, value) if isinstance(value, str) else value


_GIVEN = re.compile(r"given ([\w, ]+) bound to app (\S+?)(?: as side (\S+))?")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _pairs(text: str) -> dict[str, Any]:
    """Read key=word, key="some words" and key:=JSON."""
    pairs: dict[str, Any] = {}
    position = 0
    while position < len(text):
        found = _KEY.match(text, position)
        assert found, f"'{text[position:]}' is not key=value"
        position = found.end()
        if found[2] == ":=" or text[position : position + 1] == '"':
            pairs[found[1]], position = _JSON.raw_decode(text, position)
        else:
            word = _WORD.match(text, position)
            assert word
            pairs[found[1]], position = word[0], word.end()
    return pairs


_KEY = re.compile(r"\s*([\w-]+)(:?=)")
_WORD = re.compile(r"\S*")
_JSON = json.JSONDecoder()
