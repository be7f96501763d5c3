"""The promise "a commit means disk", checked on the notes of the tracer. Of every answer that left:

- no write to the log was waiting for its flush; only greetings and control frames may leave between the two;
- its command, if it changed something, had come before a commit began that was written and flushed by now;
- if it is a message, it stands in a part of the log that was flushed by now;
- the name of the log was on disk, too: its directory was flushed (fsync(2), NOTES).
"""

import json
import re
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from support.mailbox.frames import Follower
from support.tracer import Call

Frame = dict[str, Any]

EARLY: Final = "left between a write to the log and its flush"
UNKEPT: Final = "no commit since its command came"
UNWRITTEN: Final = "delivered before it was on disk"
UNNAMED: Final = "left before the log's name was on disk"

CHANGING: Final = frozenset({"allocate", "claim", "open", "add", "release", "close"})
"""What changes something whenever it is said in test_disk.py; but an `open` after a claim joins nothing new,
and the record of a bind may wait for the next commit."""

TOKEN: Final = re.compile(rb"token-[0-9]+-")
"""What each body there begins with, to be found again in the pages of the log."""


class Broken(NamedTuple):
    rule: str
    frame: Frame


class Report(NamedTuple):
    """What was found."""

    broken: list[Broken]
    conversations: list[list[str]]
    """The texts that left on each socket: what the audit has looked at."""

    @property
    def rules(self) -> set[str]:
        return {each.rule for each in self.broken}


def audit(calls: list[Call]) -> Report:
    """Go through what a server did, in order."""
    auditor = _Auditor()
    moments = [(call.begin, False, call) for call in calls] + [(call.end, True, call) for call in calls]
    for time, ends, call in sorted(moments):
        auditor.see(time, call, ends=ends)
    return Report(auditor.broken, [each.texts for each in auditor.conversations.values() if each.texts])


class _Conversation:
    """What went over one socket."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.asked: deque[tuple[int, Frame]] = deque()
        """Commands that have no ack yet, and when each had come."""
        self.answered: tuple[int, Frame] = (0, {})
        """The last one that has."""
        self.claimed = False
        self.incoming = Follower()
        self.outgoing = Follower()

    def acknowledge(self, frame: Frame) -> None:
        """Commands are acknowledged in the order in which they came."""
        self.answered = self.asked.popleft()
        assert self.answered[1]["id"] == frame["id"], frame
        self.claimed = self.claimed or self.answered[1]["type"] == "claim"

    def changing(self) -> bool:
        """Return whether the command that is being answered changed something."""
        kind = self.answered[1]["type"]
        return kind in CHANGING and not (kind == "open" and self.claimed)


class _Auditor:
    def __init__(self) -> None:
        self.broken: list[Broken] = []
        self.conversations: dict[str, _Conversation] = {}
        self._unflushed: list[Call] = []
        self._commit_began = 0
        """When the first write of the last commit that is on disk began."""
        self._on_disk: set[bytes] = set()
        """Tokens of messages."""
        self._log = ""
        self._named = False

    def see(self, time: int, call: Call, *, ends: bool) -> None:
        if call.kind == "write" and not ends:
            self._log = call.file
            self._unflushed.append(call)
        elif call.kind == "sync" and ends and call.file == self._log:
            self._flush(call)
        elif call.kind == "sync" and ends and self._log.startswith(f"{call.file}/"):
            self._named = True
        elif call.kind == "receive" and ends and call.data:
            conversation = self.conversations.setdefault(call.file, _Conversation())
            conversation.asked.extend((time, json.loads(text)) for text in _texts(conversation.incoming, call.data))
        elif call.kind == "send" and not ends and call.file in self.conversations:  # else it is no client's
            conversation = self.conversations[call.file]
            for text in _texts(conversation.outgoing, call.data):
                conversation.texts.append(text)
                self._judge(conversation, json.loads(text))

    def _flush(self, call: Call) -> None:
        written = [write for write in self._unflushed if write.end < call.begin]
        self._unflushed = self._unflushed[len(written) :]
        if written:
            self._commit_began = written[0].begin
        for write in written:
            self._on_disk.update(TOKEN.findall(write.data))

    def _judge(self, conversation: _Conversation, frame: Frame) -> None:
        if frame["type"] == "welcome":
            return
        if self._unflushed:
            self.broken.append(Broken(EARLY, frame))
        if not self._named:
            self.broken.append(Broken(UNNAMED, frame))
        if frame["type"] == "message":
            if not self._on_disk.issuperset(TOKEN.findall(frame["body"].encode())):
                self.broken.append(Broken(UNWRITTEN, frame))
            return
        if frame["type"] == "ack":
            conversation.acknowledge(frame)
        if conversation.changing() and self._commit_began < conversation.answered[0]:
            self.broken.append(Broken(UNKEPT, frame))


def _texts(direction: Follower, data: bytes) -> Iterator[str]:
    """Yield the messages that these bytes complete."""
    return (piece.payload.decode() for piece in direction.feed(data) if piece.payload is not None)
