"""A server that lies, floods or is silent: a typed error or correct behaviour, no hang, and bounded memory."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from unittest.mock import Mock

import pytest

from client import live
from client.liar import NO_ROOM, Answer, Lie, Sent, answer_handshake, honest, instead_of, listening, lying, text
from client.live import Heard, meet, read, use
from restante.client import ConnectionOptions, PeerMessageError, Reconnecting, ServerError, WrongPasswordError
from restante.client.connection import driver
from restante.mailbox.protocol.refusals import TOO_MANY_FROM_ADDRESS
from support.bounds import bounded
from support.mailbox.raw_socket import BINARY, CLOSE, CONTINUATION, PING, TEXT, frame

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "delay_before", lambda *_: 0.02)


wormhole = partial(live.wormhole, options=ConnectionOptions(close_seconds=2.0))

server_frame = partial(frame, mask=False)

OPENING = ("welcome", "allocated", "claimed")

HINT = "100 may be open at a time"
TOO_MANY: Answer = {"type": "error", "error": TOO_MANY_FROM_ADDRESS.message, "hint": HINT, "orig": None}
NOT_STORED = server_frame(CLOSE, (1012).to_bytes(2, "big") + b"not stored")
CLOSED_AT_ONCE = server_frame(CLOSE, (1008).to_bytes(2, "big") + TOO_MANY_FROM_ADDRESS.message.encode())
NOT_NOW: Answer = {"type": "error", "error": "not now", "orig": {"type": "claim"}, "retry": True}


@pytest.mark.parametrize(
    ("kind", "refusal", "reason"),
    [
        ("claimed", NOT_NOW, "not now"),
        *((kind, NO_ROOM, "no room") for kind in OPENING[:2]),
        *((kind, NOT_STORED, "not stored") for kind in OPENING),
        *((kind, TOO_MANY, HINT) for kind in OPENING),
        *((kind, CLOSED_AT_ONCE, TOO_MANY_FROM_ADDRESS.message) for kind in OPENING),
    ],
)
async def test_a_server_that_has_no_room_now_is_left_alone_for_longer_each_time(
    monkeypatch: pytest.MonkeyPatch, kind: str, refusal: Sent, reason: str
) -> None:
    heard, delay = Heard(), Mock(return_value=0.01)

    def refuse(answer: Answer) -> list[Sent]:
        if answer["connection"] > 3 or answer["type"] != kind:
            return [answer]
        return [answer, refusal] if kind == "welcome" and refusal is TOO_MANY else [refusal]

    monkeypatch.setattr(driver, "delay_before", delay)
    async with lying(refuse) as liar, wormhole(liar.url, on_event=heard) as alice, bounded("a code"):
        await alice.allocate_code()
        await alice.flush()
        await alice.close(abandon=True)
    assert [call.args[0] for call in delay.call_args_list] == [1, 2, 3]
    assert [event.busy and reason in event.reason for event in heard.of(Reconnecting)] == [True] * 3


async def test_another_error_before_a_close_for_policy_ends_the_wormhole() -> None:
    refusal = {"type": "error", "error": "must bind first", "hint": "within 300 s\x1b[2J", "orig": None}
    async with lying(instead_of("allocated", refusal)) as liar:
        with pytest.raises(ServerError, match=r"must bind first: within 300 s\\x1b\[2J$"):
            await use(wormhole(liar.url))


NO_MESSAGES = (b"", b"garbage", b"\xff\xfe", b"[]", b"null", b"{}", b"[" * 1_000_000, b'{"type": 7}')


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        *(("welcome", content) for content in NO_MESSAGES),
        ("welcome", b'{"type": "welcome"}'),
        ("welcome", b'{"type": "welcome", "welcome": 7}'),
        ("welcome", b'{"type": "welcome", "welcome": {"motd": 7}}'),
        ("welcome", b'{"type": "welcome", "welcome": {"permission-required": "all"}}'),
        ("welcome", b'{"type": "welcome", "welcome": {"permission-required": {"hashcash": {"bits": "20"}}}}'),
        *((kind, b'{"type": "message", "side": "s", "phase": "pake", "body": ""}') for kind in OPENING),
        ("allocated", b'{"type": "allocated"}'),
        *(
            ("allocated", json.dumps({"type": "allocated", "nameplate": nameplate}).encode())
            for nameplate in (4, "", "four", "-1", "9" * 41, "4-purple", "4-\x1b[31m", "4\n", "٤")
        ),
        ("claimed", b'{"type": "claimed", "mailbox": null}'),
        ("claimed", b'{"type": "claimed", "mailbox": "%s"}' % (b"x" * 1000)),
        ("claimed", b'{"type": "error", "error": 7}'),
        ("claimed", b'{"type": "error", "error": "no", "orig": 7}'),
        ("claimed", b'{"type": "error", "error": "no", "orig": {"type": "\xff"}}'),
        ("message", b'{"type": "message", "side": 7, "phase": "pake", "body": ""}'),
        ("message", b'{"type": "message", "side": "s", "phase": null, "body": ""}'),
        ("message", b'{"type": "message", "side": "s", "phase": "pake"}'),
        ("message", b'{"type": "message", "side": "s", "phase": "pake", "body": 7}'),
        ("message", b'{"type": "message", "side": "s", "phase": "%s", "body": ""}' % (b"p" * 1000)),
        ("pong", b'{"type": "pong"}'),
    ],
)
async def test_a_message_that_breaks_the_protocol_is_an_error(kind: str, content: bytes) -> None:
    async with lying(instead_of(kind, text(content))) as liar:
        with pytest.raises(ServerError) as caught:
            await use(wormhole(liar.url))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("body", ["", "zz", "é", "7b7d", json.dumps({"pake_v1": "00"}).encode().hex()])
async def test_a_half_of_the_key_that_is_none_is_an_error(body: str) -> None:
    half = {"type": "message", "side": "foreign", "phase": "pake", "body": body}
    async with lying(instead_of("pong", half)) as liar:
        with pytest.raises(WrongPasswordError, match=r"key is not valid: (it cannot be read|not a message)"):
            await use(wormhole(liar.url))


def not_in_order() -> Lie:
    """Return a lie that keeps back each message with an even number until the next one has gone."""
    kept: dict[int, Answer] = {}

    def lie(answer: Answer) -> list[Sent]:
        phase, number = answer.get("phase", ""), answer["connection"]
        if not phase.isdigit():
            return [answer]
        if int(phase) % 2 == 0:
            kept[number] = answer
            return []
        return [answer, kept.pop(number)]

    return lie


def in_fragments(answer: Answer) -> list[Sent]:
    content = json.dumps(answer).encode()
    return [
        server_frame(TEXT, content[:5], fin=False),
        server_frame(PING, b"still there?"),
        server_frame(CONTINUATION, content[5:9], fin=False),
        server_frame(CONTINUATION, b"", fin=False),
        server_frame(CONTINUATION, content[9:]),
    ]


@pytest.mark.parametrize(
    "lie",
    [
        lambda answer: [answer, answer],
        lambda answer: [{"type": "news", "news": [1, 2, 3]}, answer, {"type": "ack"}],
        not_in_order(),
        in_fragments,
    ],
)
async def test_each_message_arrives_once_and_in_order_however_the_server_sends_it(lie: Lie) -> None:
    messages = [b"%d" % number for number in range(20)]
    async with lying(lie) as liar, wormhole(liar.url) as alice, wormhole(liar.url) as bob:
        await meet(alice, bob)
        for message in messages:
            await alice.send(message)
        assert await read(bob, 20) == messages
        await bob.send(b"even")
        await bob.send(b"odd")
        assert await read(alice, 2) == [b"even", b"odd"]


BROKEN_FRAMES = {
    "a continuation of nothing": server_frame(CONTINUATION, b"{}"),
    "a text in fragments of a text": server_frame(TEXT, b"{", fin=False) + server_frame(TEXT, b"}"),
    "binary in fragments of a text": server_frame(TEXT, b"{", fin=False) + server_frame(BINARY, b"}"),
    "the first reserved bit": server_frame(TEXT, b'{"type": "news"}', reserved=4),
    "the third reserved bit": server_frame(TEXT, b'{"type": "news"}', reserved=1),
    "an unknown opcode": server_frame(3, b"{}"),
    "a long ping": server_frame(PING, bytes(126)),
    "a ping in fragments": server_frame(PING, fin=False),
    "a mask, which servers must not use": frame(TEXT, b"{}"),
    "the announcement of 10 MiB": server_frame(TEXT, bytes(10 * MIB))[:1000],
    "a refusal of our message": server_frame(CLOSE, (1009).to_bytes(2) + b"too big"),
}


@pytest.mark.parametrize("name", BROKEN_FRAMES)
async def test_frames_that_break_the_protocol_are_an_error_and_end_the_connections(name: str) -> None:
    async with lying(instead_of("claimed", BROKEN_FRAMES[name])) as liar:
        with pytest.raises(ServerError):
            await use(wormhole(liar.url))
    assert liar.connections <= driver.MAX_BAD_CONNECTIONS


async def test_fragments_without_end_are_not_all_kept() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await answer_handshake(reader, writer)
        opcode = TEXT
        while True:
            writer.write(server_frame(opcode, bytes(MIB), fin=False))
            opcode, sent = CONTINUATION, sent + 1
            await writer.drain()

    async with listening(serve) as port:
        with pytest.raises(ServerError, match="more than"):
            await use(wormhole(f"ws://127.0.0.1:{port}/v1"))
    assert sent < 30


async def test_messages_without_the_ones_before_them_are_not_all_kept() -> None:
    early: list[Sent] = [
        {"type": "message", "side": "foreign", "phase": str(number), "body": "00" * 100} for number in range(1, 2000)
    ]
    async with lying(instead_of("pong", *early)) as liar:
        with pytest.raises(PeerMessageError):
            await use(wormhole(liar.url))


async def test_pings_of_a_server_that_reads_nothing_are_not_all_answered() -> None:
    answers = asyncio.Queue[bytes]()  # the client may connect again while it ends

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_handshake(reader, writer)
        for _ in range(300):
            writer.write(server_frame(PING, bytes(125)) * 1000)
            await writer.drain()
        writer.write(NO_ROOM)
        answers.put_nowait(await reader.read(-1))
        await asyncio.Event().wait()

    async with listening(serve) as port, wormhole(f"ws://127.0.0.1:{port}/v1", wait=True) as alice:
        async with bounded("the answers"):
            read_bytes = len(await answers.get())
        await alice.close(abandon=True)
    assert read_bytes < 300 * 1000 * 125 / 2  # what the system's buffers take


async def test_a_server_that_does_not_answer_pings_is_connected_to_again() -> None:
    heard, options = Heard(), ConnectionOptions(ping_seconds=1.0, close_seconds=2.0)
    async with lying(honest) as liar, wormhole(liar.url, on_event=heard, options=options) as alice:
        await alice.allocate_code()
        await heard.until(Reconnecting)
        await alice.close(abandon=True)


async def test_work_that_is_demanded_again_and_again_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Mock(side_effect=lambda *_: asyncio.Event().wait())
    monkeypatch.setattr(driver, "find_stamp", search)
    demand = {"permission-required": {"none": None, "hashcash": {"bits": 20, "resource": "r"}}}
    welcome: Answer = {"type": "welcome", "welcome": demand}
    pong = {"type": "nameplates", "nameplates": []}
    async with lying(instead_of("welcome", *[welcome] * 100, pong)) as liar, wormhole(liar.url, wait=True) as alice:
        async with bounded("the message behind the welcomes"):
            assert await alice.nameplates() == []
        search.assert_called_once()
