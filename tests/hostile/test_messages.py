"""Any JSON in any field of any command: an object is answered, and what is none ends its connection."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from support.mailbox.clients import REPLIES
from support.mailbox.raw_socket import BINARY, TEXT, RawSocket, frame
from support.mailbox.siege import Siege

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "bind": ("appid", "side", "client_version"),
    "list": (),
    "allocate": (),
    "claim": ("nameplate",),
    "release": ("nameplate",),
    "open": ("mailbox",),
    "add": ("phase", "body"),
    "close": ("mailbox", "mood"),
    "ping": ("ping",),
}

GOOD: Final[dict[str, str]] = {
    "appid": '"fuzz"',
    "side": '"s"',
    "client_version": '["python", "1"]',
    "nameplate": '"4"',
    "mailbox": '"m"',
    "phase": '"p"',
    "body": '"00"',
    "mood": '"happy"',
    "ping": "1",
    "id": '"1"',
}

VALUES: Final = (
    *("null", "true", "false", "0", "-0", "-1", "1.5", "1e400", "-1E-400", "1" * 5000, "0." + "3" * 5000),
    *('""', '" "', '"\\u0000"', '"é"', '"😀"', '"\\ud83d\\ude00"', '"' + "x" * 5000 + '"', '"4\\n"', '"٤"'),
    *("[]", "[[]]", "[" * 500 + "]" * 500, '["python"]', "[null, null]", "[1, 2, 3]"),
    *("{}", '{"type": "ping"}', '{"a": ' * 300 + "1" + "}" * 300, '{"": {"": ""}}'),
)
"""What stands where something else should; JSON text."""

COMMON: Final = ("null", "true", "0", '""', '"é"', "[]", "{}")
"""One value of each type, and a text that is no ASCII."""

FIRST: Final = ("", "bind", "open")
"""How far a connection is when it is said: the last thing that it said rightly."""


def command(**fields: str) -> str:
    """Return a JSON object from texts of JSON values."""
    return "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in fields.items()) + "}"


def wrong(kind: str, values: Sequence[str]) -> Iterator[str]:
    """Yield the command with every value in each of its fields, one at a time, and without it."""
    good = {"id": GOOD["id"], "type": json.dumps(kind), **{field: GOOD[field] for field in FIELDS[kind]}}
    for field, right in good.items():
        yield command(**{key: value for key, value in good.items() if key != field})
        for value in values:
            yield command(**{**good, field: value})
            yield command(**{**good, field: value})[:-1] + f", {json.dumps(field)}: {right}}}"


def read(text: str) -> Any:
    """Read JSON as RFC 8259 has it, numbers as they are written. Raises ValueError for what is none."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)


async def answered(socket: RawSocket, texts: list[str]) -> None:
    """Say these texts, all of them JSON objects, at once: each must be answered as is due, in order, and no more.

    First comes the ack with the very id, null where there is none; then an error with the very text, or the direct
    response with the very id. What has no type gets its error alone. Messages may come in between.
    """
    fence = b'{"type": "ping", "ping": "fence"}'
    socket.write(*(frame(TEXT, text.encode()) for text in texts), frame(TEXT, fence))
    told = deque([await heard(socket)])
    while told[-1][0].get("pong") != "fence":
        told.append(await heard(socket))
    for text in texts:
        said = read(text)
        if "type" in said:
            ack, _ = told.popleft()
            assert (ack["type"], ack["id"]) == ("ack", said.get("id")), text
        kind = said.get("type")
        if b'"orig":' + text.encode() + b',"server_tx"' in told[0][1]:
            error, _ = told.popleft()
            assert (error["type"], error["error"] in {"", "internal error"}) == ("error", False), text
        elif isinstance(kind, str) and kind in REPLIES:
            reply, _ = told.popleft()
            assert (reply["type"], reply["id"]) == (REPLIES[kind], said.get("id")), text
        else:
            assert kind in {"bind", "open", "add"}, text
    assert [each["type"] for each, _ in told] == ["ack", "pong"]


async def heard(socket: RawSocket) -> tuple[dict[str, Any], bytes]:
    """Read the next frame that is no message; gives also how it stood there."""
    while True:
        opcode, payload = await socket.read()
        assert opcode in {TEXT, BINARY}, (opcode, payload)
        told = read(payload.decode())
        if told["type"] != "message":
            return told, payload


async def how_far(siege: Siege, first: str) -> RawSocket:
    socket = await siege.enter()
    if first:
        await answered(socket, [command(type='"bind"', appid='"fuzz"', side='"s"')])
    if first == "open":
        await answered(socket, [command(type='"open"', mailbox='"m"')])
    return socket


@pytest.mark.parametrize("kind", FIELDS)
async def test_any_value_in_any_field_is_answered(siege: Siege, kind: str) -> None:
    """All values on a connection that has the mailbox open, and the common ones before that."""
    async with siege.beside_the_pair("wrong types", 1):
        for first in FIRST:
            texts = list(wrong(kind, VALUES if first == "open" else COMMON))
            for start in range(0, len(texts), 100):
                socket = await how_far(siege, first)
                await answered(socket, texts[start : start + 100])
                await socket.leave()
