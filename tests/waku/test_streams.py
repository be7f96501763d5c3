"""`fetch`, `subscribe` and `Poster` of the library: what a program takes and posts, and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from restante import waku
from restante.common.errors import Misuse
from restante.waku.envelope.envelope import make
from restante.waku.limits import Limits
from restante.waku.node import main
from restante.waku.protocol import packets
from support.bounds import bounded
from support.loops import until
from support.waku.fake_node import SHARED, Honest, listening
from support.waku.inside import Today, inside
from support.waku.letters import TOPIC
from support.waku.virtual_time import in_virtual_time

OTHER = b"\xff\xff\xff\xff"
PASSWORD = "status-offline-inbox"
NOBODY = waku.Enode(waku.new_key().public, "127.0.0.1", 1)


def letters(count: int, age: int = 3600, topic: bytes = TOPIC) -> list[waku.Envelope]:
    begin = int(time.time()) - age
    return [make(begin + number + 50, 50, topic, b"", number) for number in range(count)]


async def test_every_topic_of_some_times_without_a_password_or_with_another() -> None:
    sent = letters(5, age=100) + letters(5, age=100, topic=OTHER)
    since, until = sent[1].sent, sent[2].sent
    async with listening(Honest(sent)) as (node, enode):
        plain = waku.fetch([enode], topics=None, since=since, until=until + 0.5, form="plain")
        for stream in (plain, waku.fetch([enode], topics=None, since=since, until=until, password=SHARED)):
            assert {letter.hash async for letter in stream} == {letter.hash for letter in sent[1:3] + sent[6:8]}
        assert [request.form for request in node.asked] == ["plain", "envelope"]


async def test_who_leaves_the_loop_has_the_state_of_what_was_taken_and_leaves_the_server() -> None:
    sent = letters(30)
    states: list[waku.FetchState] = []
    async with (
        listening(Honest(sent, size=10, packet_envelopes=10), password=PASSWORD) as (node, enode),
        bounded("it"),
    ):
        stream = waku.fetch(enode, topics=[TOPIC], keep=states.append)
        taken = []
        async with stream:
            async for page in stream.pages():
                taken += page
                if len(taken) == 20:
                    break
        await node.is_alone.wait()
        assert stream.state == states[-1]
        rest = [letter async for letter in waku.fetch(enode, topics=[TOPIC], state=stream.state)]
        node.is_alone.clear()
        async for letter in waku.fetch(enode, topics=[TOPIC]):
            assert letter == sent[0]
            break
        await node.is_alone.wait()
        node.is_alone.clear()
        node.mailserver = None  # it does not answer any more
        task = asyncio.create_task(anext(aiter(waku.fetch(enode, topics=[TOPIC])), None))
        await until("a connection", lambda: node.connections)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await node.is_alone.wait()
    assert stream.report is None
    assert rest == sent[19:]  # more may have been sent in the last second of a page


@pytest.mark.parametrize(("count", "fails", "begin"), [(20, False, 19), (20, True, 9), (15, False, 9)])
async def test_a_page_counts_as_taken_if_all_of_it_was_and_the_block_ends_without_an_error(
    count: int, fails: bool, begin: int
) -> None:
    sent = letters(30)
    async with listening(Honest(sent, size=10, packet_envelopes=10), password=PASSWORD) as (_, enode), bounded("it"):
        stream, remaining = waku.fetch(enode, topics=[TOPIC]), count
        with suppress(ZeroDivisionError):
            async with stream:
                async for _letter in stream:
                    remaining -= 1
                    if not remaining:
                        assert not (fails and 1 / remaining)
                        break
        assert [letter async for letter in waku.fetch(enode, topics=[TOPIC], state=stream.state)] == sent[begin:]


@in_virtual_time
async def test_a_refusal_is_an_error_at_the_end() -> None:
    async with listening(Honest(letters(3)), password="another") as (_, wrong):
        options = waku.ConnectionOptions(max_failures=1)
        stream = waku.fetch(wrong, topics=[TOPIC], since=1000, until=2000, options=options)
        text = r"no Mailserver answered for the times 1000 to 2000; 127\.0\.0\.1:"
        with pytest.raises(waku.IncompleteError, match=text) as incomplete:
            _ = [letter async for letter in stream]
    assert incomplete.value.missing == [(1000, 2000)]
    assert incomplete.value.failures == stream.failures
    assert list(stream.failures) == [wrong]


async def test_an_error_of_the_program_ends_the_fetch() -> None:
    def fail(_: waku.FetchState) -> None:
        raise ZeroDivisionError

    async with listening(Honest(letters(3)), password=PASSWORD) as (node, enode), bounded("the end"):
        stream = waku.fetch(enode, topics=[TOPIC])
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - a loop
            async with stream:
                async for _ in stream:
                    raise ZeroDivisionError
        await node.is_alone.wait()
        with pytest.raises(Misuse, match="iterated over once"):
            _ = [letter async for letter in stream]
        with pytest.raises(ZeroDivisionError):
            _ = [letter async for letter in waku.fetch(enode, topics=[TOPIC], keep=fail)]


@pytest.mark.parametrize(
    ("call", "arguments", "text"),
    [
        (waku.fetch, {"servers": [], "topics": [TOPIC]}, "no Mailserver is named"),
        (waku.fetch, {"servers": "http://x", "topics": [TOPIC]}, "not an enode URL"),
        (waku.fetch, {"servers": NOBODY, "topics": TOPIC}, "topics are a list of bytes"),
        (waku.fetch, {"servers": NOBODY, "topics": []}, "topics are a list of bytes"),
        (waku.fetch, {"servers": NOBODY, "topics": [b"abc"]}, "topics are a list of bytes, each of 4"),
        (waku.fetch, {"servers": NOBODY, "topics": ["abcd"]}, "topics are a list of bytes"),
        (waku.subscribe, {"servers": NOBODY, "topics": "abcd"}, "topics are a list of bytes"),
        (waku.subscribe, {"servers": NOBODY, "topics": [TOPIC], "options": {}}, "`options` are ConnectionOptions"),
        (waku.Poster, {"node": NOBODY, "options": {}}, "`options` are ConnectionOptions, not {}"),
        (waku.ConnectionOptions, {"connect_seconds": 0}, "connect_seconds: 0 is not a number over 0"),
        (waku.ConnectionOptions, {"page_envelopes": 1001}, "page_envelopes: 1001 is not a whole number from 1"),
        (waku.ConnectionOptions, {"user_agent": "a\n"}, "1 to 256 printable ASCII characters"),
    ],
)
def test_arguments_that_cannot_be_used(call: Callable[..., Any], arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(Misuse, match=text):
        call(**arguments)


async def test_a_fetch_goes_back_a_day_and_a_subscription_begins_now_or_where_its_state_ends() -> None:
    sent = [*letters(1, age=86_401), *letters(2, age=86_400 - 600), *letters(1, age=1000)]
    async with listening(Honest(sent), password=PASSWORD) as (node, enode), bounded("the envelopes"):
        first = waku.fetch(enode, topics=[TOPIC], until=time.time() - 2000)
        assert [letter async for letter in first] == sent[1:3]
        for state, envelope in ((first.state, sent[3]), (waku.FetchState(), sent[1])):
            async with waku.subscribe(enode, topics=[TOPIC], state=state) as stream:
                assert await anext(aiter(stream)) == envelope
        stream = waku.subscribe(enode, topics=[TOPIC])
        before = len(node.asked)
        async with stream:
            task = asyncio.create_task(anext(aiter(stream), None))
            await until("a request", lambda: len(node.asked) > before)
            stream.stop()
            assert await task is None
        assert node.asked[-1].lower > time.time() - 900


async def test_a_subscription_tells_which_server_fails() -> None:
    failed: asyncio.Future[waku.Enode] = asyncio.get_running_loop().create_future()
    async with bounded("the failure"):
        stream = waku.subscribe([NOBODY], topics=[TOPIC], on_failure=lambda server, _: failed.set_result(server))
        next_envelope = asyncio.create_task(anext(aiter(stream), None))
        assert await failed == NOBODY
        stream.stop()
        assert await next_envelope is None


async def test_a_program_that_is_too_slow_for_live_envelopes_is_told() -> None:
    first, *live = letters(20, age=20)
    async with listening(Honest([first])) as (node, enode), bounded("the end"):
        options = waku.ConnectionOptions(max_bytes=10 * len(first.raw))
        stream = waku.subscribe(enode, topics=[TOPIC], since=0, password=SHARED, options=options)
        with pytest.raises(waku.LaggingError, match="bytes of envelopes wait to be taken"):  # noqa: PT012 - a loop
            async for _letter in stream:
                for connection in node.connections:
                    connection.send(packets.MESSAGES, packets.write_envelopes(letter.raw for letter in live))
                await node.is_alone.wait()


async def test_a_thousand_posts_of_a_poster_take_one_connection(tmp_path: Path) -> None:
    async with inside(tmp_path, clock=Today()) as here, waku.Poster(here.enode) as poster, bounded("the posts"):
        posts = [poster.post(b"%d" % number, topic=TOPIC, to=SHARED) for number in range(1000)]
        hashes = {posted.envelope.hash for posted in await asyncio.gather(*posts) if posted.confirmed}
        assert (len(hashes), hashes) == (1000, set(await here.archive.hashes()))
        assert len(here.node.connections) == 1


async def test_a_lost_connection_fails_posts_under_way_and_the_next_makes_another(tmp_path: Path) -> None:
    async with inside(tmp_path, clock=Today()) as here:
        async with waku.Poster(here.enode) as poster, bounded("the posts"):
            here.archive.idle.clear()
            under_way = asyncio.create_task(poster.post(b"1", topic=TOPIC, to=SHARED))
            await here.until("the envelope", lambda: here.archive.saving)
            for connection in here.node.connections:
                connection.abort()
            with pytest.raises(waku.NodeUnavailableError, match="the node disconnected: the connection was lost"):
                await under_way
            here.archive.idle.set()
            both = [poster.post(b"%d" % number, topic=TOPIC, to=SHARED) for number in (2, 3)]
            assert all(posted.confirmed for posted in await asyncio.gather(*both))
            assert len(here.node.connections) == 1
        with pytest.raises(Misuse, match="posts within its context"):
            await poster.post(b"4", topic=TOPIC, to=SHARED)


async def test_program_and_operator_learn_which_limit_frequent_connections_have_met(tmp_path: Path) -> None:
    async with inside(tmp_path, limits=Limits(address_connects=0.001, address_connects_at_once=2)) as here:
        for _ in range(3):
            (await here.greet()).cut()
        with pytest.raises(waku.SilentError, match=r"address_connects.*: send many envelopes over one connection"):
            await waku.post(here.enode, b"", topic=TOPIC, to=SHARED)
        assert main.log_counts(here.node)["turned away before the handshake, over address_connects"] == 1
