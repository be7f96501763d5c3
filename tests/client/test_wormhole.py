"""Two wormholes meet at a server in memory, in virtual time too: what their programs can do, and how they end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from client.live import APP_ID, NOBODY, Heard, Network, meet, read, simulated, url_of, use, virtual_wormhole, wormhole
from restante import client
from restante.client import CodeError, Journal, Misuse, UndeliveredError, Wormhole, WormholeError, completions
from restante.client.arguments import MAX_SENT_BYTES
from restante.client.connection import websocket
from restante.client.connection.options import DEFAULT_OPTIONS, ConnectionOptions
from restante.client.core.state import Abilities
from restante.client.errors import ClosedError, LonelyError, NoReceiptsError, ServerGoneError, WelcomeError
from restante.client.events import Closed, CodeKnown, Connecting, Event, KeyAgreed, MessageStored, PeerConfirmed
from restante.client.transfer.sending import send_directory, send_file
from restante.client.transfer.text import send_text
from support.bounds import bounded
from support.effort import examples
from support.mailbox.givens import Options
from support.mailbox.servers import Restante

OPENING = [Connecting, client.Welcomed, CodeKnown, client.ReplayEnded, client.WaitingForPeer]


async def test_two_sides_meet_and_exchange_messages(network: Network) -> None:
    heard, messages = Heard(), [b"%d" % number for number in range(100)]
    async with wormhole(versions={"chat": 1}, on_event=heard) as alice, wormhole() as bob:
        await alice.send(messages[0])  # before there is a peer
        code = await alice.allocate_code()
        await heard.until(client.WaitingForPeer)
        async with bounded("a key"):
            await bob.set_code(code)
            assert await alice.verifier() == await bob.verifier()
        assert (await alice.versions(), await bob.versions()) == ({}, {"chat": 1})
        for message in messages[1:]:
            await alice.send(message)
        for message in messages:
            await bob.send(message)
        assert await read(bob, 100) == messages
        assert await read(alice, 100) == messages
        keys = [await side.derive_key("files", 40) for side in (alice, bob)]
        assert keys[0] == keys[1]
        assert len(keys[0]) == 40
        assert len(await alice.derive_key("files", 8160)) == 8160
        assert await alice.derive_key("chat", 40) != keys[0]
        await alice.flush()
    assert heard.of(CodeKnown) == [CodeKnown(code)]
    assert [event.number for event in heard.of(MessageStored)] == list(range(100))
    kinds = [*OPENING, KeyAgreed, PeerConfirmed, Closed]
    assert [type(event) for event in heard.events if not isinstance(event, MessageStored)] == kinds
    assert network.moods == ["happy"]
    assert network.is_empty


async def test_messages_are_iterated_until_the_close_and_known_to_be_stored_and_delivered(network: Network) -> None:
    messages = []
    async with wormhole(receipts=True) as alice, wormhole() as bob, bounded("the end of the messages"):
        await meet(alice, bob)
        await alice.send(b"one", until="stored")
        delivering = asyncio.create_task(alice.send(b"two", until="delivered"))
        async for message in bob:
            messages.append(message)
            if message == b"two":
                assert (await delivering).number == 1
                answer = await bob.send(b"hello yourself", until="stored")
                for waiting in (answer.delivered(), bob.send(b"not sent", until="delivered")):
                    with pytest.raises(NoReceiptsError):
                        await waiting
                assert await alice.receive() == b"hello yourself"
                await bob.close()
        assert messages == [b"one", b"two"]
        with pytest.raises(ClosedError):
            await bob.send(b"three")


async def test_nameplates_are_listed_and_codes_completed(network: Network) -> None:
    async with wormhole() as alice, wormhole() as bob:
        assert await bob.nameplates() == []
        nameplate, *words = (await alice.allocate_code()).split("-")
        assert await bob.nameplates() == [nameplate]
        assert await bob.complete("") == [f"{nameplate}-"]
        assert f"{nameplate}-{words[0]}-" in await bob.complete(f"{nameplate}-{words[0][:2]}")
        await alice.close(abandon=True)


@pytest.mark.parametrize(
    "options", [ConnectionOptions(max_unstored_bytes=1000), ConnectionOptions(max_unstored_messages=1)]
)
async def test_a_send_waits_while_too_much_is_not_stored(network: Network, options: ConnectionOptions) -> None:
    async with wormhole(options=options) as alice, wormhole() as bob:
        await alice.send(bytes(1000))
        waiting = asyncio.create_task(alice.send(b"next"))
        code = await alice.allocate_code()
        assert not waiting.done()
        await bob.set_code(code)
        async with bounded("room"):
            await waiting
        assert await read(bob, 2) == [bytes(1000), b"next"]


async def test_the_welcome_of_a_server_is_told(network: Network) -> None:
    network.world.options = Options(motd="hello")
    heard = Heard()
    async with wormhole(on_event=heard):
        await heard.until(client.Welcomed)
    assert heard.of(client.Welcomed) == [client.Welcomed("hello", None)]
    network.world.options = Options(error="moved\nto \x1b[2J")
    with pytest.raises(WelcomeError, match=r"to be used: moved to \\x1b\[2J$"):
        await use(wormhole())


@pytest.mark.parametrize("kind", [*OPENING, PeerConfirmed, Closed])
@pytest.mark.parametrize("how", ["it waits", "it abandons the wormhole", "it raises another error"])
async def test_an_error_of_the_function_for_events_ends_the_wormhole_and_leaves_nothing_at_the_server(
    network: Network, kind: type[Event], how: str
) -> None:
    def stumble(event: Event) -> None:
        if isinstance(event, kind):
            raise ZeroDivisionError

    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    with pytest.raises(KeyError if "raises" in how else ZeroDivisionError):  # noqa: PT012 - leaving raises it, too
        async with wormhole() as bob, wormhole(on_event=stumble, wait="waits" not in how) as alice:
            with suppress(ZeroDivisionError):
                await meet(alice, bob)
            if "raises" in how:
                raise KeyError
            await alice.close(abandon="abandons" in how)
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError] * ("raises" in how)
    assert network.is_empty


async def test_each_task_that_closes_gets_the_error_once_unless_it_abandons(network: Network) -> None:
    async with wormhole() as alice:
        await alice.allocate_code()
        closes = (alice.close(abandon=abandon) for abandon in (True, False, False, True))
        ends = await asyncio.gather(*closes, return_exceptions=True)
        assert [type(end) for end in ends] == [type(None), LonelyError, LonelyError, type(None)]
        with pytest.raises(LonelyError, match="before a peer came"):
            await alice.close()
    with pytest.raises(LonelyError, match="nobody can get 1 message, because the wormhole had no code: allocate"):
        async with wormhole() as alice:
            await alice.send(b"lost")


@simulated
async def test_a_wormhole_that_is_abandoned_waits_less_for_a_server_that_is_away(network: Network) -> None:
    loop = asyncio.get_running_loop()
    async with wormhole() as bob, wormhole() as alice:
        await meet(alice, bob)
        network.go_down()
        await alice.send(b"lost")
        began = loop.time()
        await alice.close(abandon=True)
        assert loop.time() - began <= 2 * DEFAULT_OPTIONS.close_seconds
        network.up = True


@pytest.mark.parametrize(
    ("how", "read_after", "seconds", "error", "moods"),
    [
        ("", [], 5, UndeliveredError, ["errory"]),
        ("", [4, 8], 13, UndeliveredError, ["errory"]),
        ("", [4, 8, 12], 12, type(None), ["happy"]),
        ("has a peer without receipts", [], 0, type(None), ["happy"]),
        ("has a peer without receipts, and a server that is away", [], 20, type(None), ["happy"]),
        ("abandons", [], 0, type(None), ["happy"]),
        ("abandons, has a silent server", [], 5, type(None), ["happy"]),
        ("raises", [], 0, ZeroDivisionError, ["errory"]),
        ("is cancelled", [], 1, asyncio.CancelledError, ["errory"]),
        ("is cancelled, has a silent server", [], 2, asyncio.CancelledError, ["errory"]),
        ("is cancelled in its block", [], 1, asyncio.CancelledError, ["errory"]),
        ("has no peer", [], 0, LonelyError, ["lonely"]),
        ("has no peer, abandons", [], 0, type(None), ["lonely"]),
        ("has no peer, raises", [], 0, ZeroDivisionError, ["lonely"]),
        ("has no peer, is cancelled in its block", [], 1, asyncio.CancelledError, ["lonely"]),
        ("has no peer and no code", [], 0, type(None), []),
        ("has no peer and no code, raises", [], 0, ZeroDivisionError, []),
        ("has no peer and no code, is cancelled in its block", [], 1, asyncio.CancelledError, []),
    ],
)
@simulated
async def test_leaving_raises_if_no_peer_came_or_if_its_receipts_do_not_come_within_five_seconds_each(
    network: Network, how: str, read_after: list[int], seconds: int, error: type[Any], moods: list[str]
) -> None:
    loop, heard, count = asyncio.get_running_loop(), Heard(), 0 if "no peer" in how else 3
    async with wormhole() as bob:
        bob._state.abilities = Abilities(sends_receipts="without receipts" not in how)

        def cancel() -> None:
            task.cancel()
            loop.call_soon(task.cancel)  # again, while it closes

        async def run() -> None:
            async with wormhole(receipts=True, on_event=heard) as alice:
                if "no code" not in how:
                    await (meet(alice, bob) if count else alice.allocate_code())
                if "away" in how:
                    network.go_down()
                    loop.call_later(20, lambda: setattr(network, "up", True))
                for number in range(count):
                    await alice.send(b"%d" % number)
                for second in read_after:
                    loop.call_later(second, asyncio.create_task, bob.receive())
                if "raises" in how:
                    raise ZeroDivisionError
                if "cancelled" in how:
                    loop.call_later(1, cancel)
                if "in its block" in how:
                    await asyncio.Event().wait()
                if "silent" in how:
                    await alice.flush()
                    network.silent_from = "closed"
                if "abandons" in how:
                    await alice.close(abandon=True)

        began, task = loop.time(), asyncio.create_task(run())
        (raised,) = await asyncio.gather(task, return_exceptions=True)
        assert (type(raised), round(loop.time() - began)) == (error, seconds)
        unread = await read(bob, count - len(read_after))
        assert not isinstance(raised, UndeliveredError) or raised.count == len(unread)
    assert len(heard.of(Closed)) == ("silent" not in how)
    assert network.moods == moods
    assert network.is_empty


@pytest.mark.parametrize("early", [True, False])
async def test_leaving_waits_for_a_peer_that_has_come(early: bool, network: Network) -> None:
    async with wormhole() as bob:
        await bob.set_code("7-a-b")
        async with wormhole(on_event=(heard := Heard())) as alice:
            await alice.set_code("7-a-b")
            await alice.send(b"at once")
            await asyncio.sleep(0) if early else await heard.until(KeyAgreed)
        assert await bob.receive() == b"at once"
    assert network.moods == ["happy"]


async def test_messages_that_nobody_reads_hinder_no_close(network: Network) -> None:
    async with wormhole() as alice, wormhole(options=ConnectionOptions(max_unread_messages=10)) as bob:
        await meet(alice, bob)
        for _ in range(50):
            await alice.send(b"unread")
        await alice.flush()
        for _ in range(5):
            await bob.send(b"last words")
        async with bounded("the close"):
            await bob.close()
        assert await read(alice, 5) == [b"last words"] * 5


async def test_a_server_of_ours_serves_on_a_real_port_with_binary_frames_and_work(tmp_path: Path) -> None:
    flags = ("--frames=binary", "--advertise-version=1.2.3", "--permission=hashcash", "--permission-bits=16")
    heard = Heard()
    async with Restante(tmp_path / "server", *flags).running() as server:
        async with wormhole(url_of(server), on_event=heard) as alice, wormhole(url_of(server)) as bob:
            await meet(alice, bob)
            await alice.send(b"hello")
            assert await read(bob, 1) == [b"hello"]
        assert server.usage() == (["happy"], ["happy"])
        assert server.live() == {}
    assert heard.of(client.Welcomed) == [client.Welcomed(None, "1.2.3")]


NAN, INFINITY = float("nan"), float("inf")
NOT_IN_JSON: list[Any] = [
    *([1], "text", {"a": object()}, {"a": "\ud800"}, {"a": NAN}, {"a": [-INFINITY]}),
    *({"a": b"bytes"}, {"a": (1, 2)}, {"a": {1}}, {1: "a"}),
]
BITS = "`max_work_bits` is a whole number, 0 or more, not "
URL = "a server's URL begins with ws:// or wss:// and is a text, not int"


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        *(({"app_id": app_id}, "an application id is a text") for app_id in ("\ud800", 5, None)),
        *(({"versions": versions}, "`versions` is a dict that JSON can express") for versions in NOT_IN_JSON),
        *(({"max_work_bits": bits}, BITS) for bits in (True, -1, 20.0, NAN, INFINITY, "20", None)),
        ({"server": 5}, URL),
        ({"server": "ws://a..b/v1"}, "has a valid host, not 'ws://a..b/v1'"),
        ({"server": b"ws://server.example/v1"}, "a server's URL begins with"),
        ({"proxy": 5}, "a proxy's URL begins with"),
        *(({"proxy": proxy}, "a proxy's URL") for proxy in ("127.0.0.1:9050", "socks5://", "http://é@a:1")),
        ({"ssl": True}, "`ssl` is an ssl.SSLContext, not True"),
        ({"options": 5}, "`options` are ConnectionOptions, not 5"),
        *(({flag: 30}, f"`{flag}` is True or False, not 30") for flag in ("wait", "receipts", "seeds")),
    ],
)
def test_an_argument_of_another_kind_is_refused(argument: dict[str, Any], reason: str) -> None:
    with pytest.raises(Misuse, match=reason):
        Wormhole.create(**{"app_id": APP_ID, "server": NOBODY, **argument})
    with pytest.raises(Misuse, match=r"Wormhole\.create\(app_id"):
        Wormhole(APP_ID)  # type: ignore[arg-type, call-arg]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"close_seconds": 0}, "`close_seconds` is a number of seconds above 0, not 0"),
        ({"max_unread_bytes": 0.5}, "`max_unread_bytes` is a whole number, 1 or more, not 0.5"),
        *(({"user_agent": text}, "printable ASCII") for text in ("", "chat\r\nHost: a", "é", 5)),
        ({"logger": "chat"}, "`logger` is a logging.Logger or LoggerAdapter, not 'chat'"),
    ],
)
def test_an_option_of_another_kind_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(Misuse, match=reason):
        ConnectionOptions(**options)


async def test_a_journal_refuses_such_an_argument(tmp_path: Path) -> None:
    async with Journal[dict[str, str]](tmp_path / "journal", {}) as journal:
        with pytest.raises(Misuse, match=BITS):
            journal.wormhole("peer", APP_ID, max_work_bits=-1)
        names: list[Any] = [5, None, b"peer", "\ud800"]
        for name in names:
            with pytest.raises(Misuse, match="the name of a wormhole is a text, not "):
                journal.wormhole(name, APP_ID)
        assert journal.names == []


@pytest.mark.parametrize(
    ("use", "arguments", "reason"),
    [
        *((use, [()], "in its context") for use in (Wormhole.allocate_code, Wormhole.nameplates, Wormhole.verifier)),
        *((use, [()], "async with") for use in (Wormhole.receive, Wormhole.flush)),
        (Wormhole.send, [(b"",)], "async with"),
        (send_text, [(5,), ("\udcff",)], "a str that UTF-8 can encode"),
        (send_file, [("/tmp",)], r"a path is a pathlib\.Path, not '/"),
        (send_directory, [("/tmp",)], r"a path is a pathlib\.Path, not '/"),
        (send_directory, [()], "there is nothing to send"),
        (Wormhole.derive_key, [(5, 32), ("\ud800", 32), *(("a", size) for size in (0, 8161, 1.5, "32"))], "a key"),
        (Wormhole.complete, [(5,), (None,), (b"7-",)], "the beginning of a code is a text, not "),
    ],
)
async def test_outside_of_its_context_a_wormhole_refuses_instead_of_waiting(
    use: Callable[..., Awaitable[object]], arguments: list[tuple[Any, ...]], reason: str
) -> None:
    outside = wormhole()
    async with bounded("the error"):
        for values in arguments:
            with pytest.raises(Misuse, match=reason):
                await use(outside, *values)
        async with asyncio.timeout(DEFAULT_OPTIONS.close_seconds / 2):
            await outside.close()
        with pytest.raises(ClosedError, match="before it was entered: create another one"):
            await outside.__aenter__()


LENGTH = "a code has 1 to 32 words, not "
REFUSED: list[tuple[Callable[[Wormhole, Any], Awaitable[object]], list[Any], type[Exception], str]] = [
    (Wormhole.set_code, [5, None, b"7-a-b", ["7-a-b"], NAN, "7-\ud800"], CodeError, "a code is a text in UTF-8, and"),
    (Wormhole.set_code, ["purple-sausages"], CodeError, "a code begins with a number"),
    (Wormhole.allocate_code, [0, 33, 2.0, NAN, "2", None], Misuse, LENGTH),
    (lambda alice, length: alice.complete("4", length), [0, 33, 2.0, NAN, "2", None], Misuse, LENGTH),
    (
        Wormhole.close,
        ["glad", "", "unwelcome", 5, ["happy"]],
        Misuse,
        "the mood happy, lonely, errory or scary, not ",
    ),
    (lambda alice, abandon: alice.close(abandon=abandon), [1, None], Misuse, "`abandon` is True or False, not "),
    (Wormhole.send, [5, "text", [1, 2], None], TypeError, "a message is bytes, not "),
    (lambda alice, until: alice.send(b"", until), ["read"], Misuse, "it is sent, stored or delivered, not 'read'"),
    (Wormhole.send, [bytes(MAX_SENT_BYTES + 1)], Misuse, "most 1,000,000 bytes, and this one has 1,000,001: send it"),
]


async def test_what_cannot_be_used_is_refused_and_the_wormhole_goes_on(network: Network) -> None:
    async with wormhole() as alice, wormhole() as bob:
        for use, values, error, reason in REFUSED:
            for value in values:
                with pytest.raises(error, match=reason):
                    await use(alice, value)
        for prefix, length, reason in (("4", 33, LENGTH), (b"7-", 2, "the beginning of a code is a text, not ")):
            with pytest.raises(Misuse, match=reason):
                completions(prefix, ["4"], length)  # type: ignore[arg-type]
        await meet(alice, bob)
        array: Any = bytearray(b"an array of bytes")
        await alice.send(array)
        await alice.send(bytes(MAX_SENT_BYTES))
        assert await read(bob, 2) == [b"an array of bytes", bytes(MAX_SENT_BYTES)]
        await alice.close("scary")
    assert network.moods == ["scary"]


def count_futures() -> int:
    return sum(isinstance(item, asyncio.Future) for item in gc.get_objects())


async def test_a_wormhole_is_entered_once_and_calls_that_are_cancelled_leave_nothing_behind(network: Network) -> None:
    alice = wormhole()
    async with alice:
        with pytest.raises(Misuse, match="entered once"):
            await alice.__aenter__()
        await alice.allocate_code()
        before = count_futures()
        for _ in range(100):
            waiting = asyncio.create_task(alice.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert count_futures() < before + 10
        with pytest.raises(LonelyError):
            await alice.close()
    with pytest.raises(Misuse, match="entered once"):
        await alice.__aenter__()
    with pytest.raises(LonelyError):
        await alice.allocate_code()
    assert network.moods == ["lonely"]
    assert network.is_empty


@examples(40)
@given(
    seed=st.integers(0, 2**32),
    latency=st.sampled_from((0.0, 0.05, 2.0)),
    breaking=st.sampled_from((0.0, 0.01, 0.05)),
    outages=st.lists(st.floats(0.0, 120.0), max_size=3),
    count=st.integers(0, 20),
)
@example(seed=0, latency=2.0, breaking=0.0, outages=[2.0, 0.0], count=0).via("it is closed while it connects, slowly")
@simulated
async def test_whatever_the_network_does_each_message_arrives_once_and_in_order(
    seed: int, latency: float, breaking: float, outages: list[float], count: int
) -> None:
    network, messages = Network(seed), [b"%d" % number for number in range(count)]
    network.latency = latency

    async def fail_sometimes() -> None:
        for outage in outages:
            await asyncio.sleep(5)
            network.go_down()
            await asyncio.sleep(outage)
            network.up = True

    async def send(wormhole: Wormhole) -> None:
        for message in messages:
            await wormhole.send(message)
            await asyncio.sleep(1)

    async def receive(wormhole: Wormhole) -> None:
        assert [await wormhole.receive() for _ in messages] == messages

    with patch.object(websocket, "connect", network.connect):
        async with virtual_wormhole(1) as alice, virtual_wormhole(2) as bob:
            code = await alice.allocate_code()
            await bob.set_code(code)
            await bob.nameplates()  # there was a first connection: from now on all may be lost
            network.breaking = breaking
            failing = asyncio.create_task(fail_sometimes())
            verifiers = await asyncio.gather(alice.verifier(), bob.verifier())
            assert verifiers[0] == verifiers[1]
            await asyncio.gather(send(alice), send(bob), receive(alice), receive(bob), failing)
            network.breaking = 0.0
            await asyncio.gather(alice.close(), bob.close())
    assert network.is_empty


@simulated
async def test_attempts_come_in_growing_delays_of_at_most_61_seconds(network: Network) -> None:
    delays: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, client.Reconnecting):
            delays.append(event.delay)
            network.up = len(delays) == 12

    async with virtual_wormhole(1, on_event=note) as alice:
        await alice.allocate_code()
        network.go_down()
        await alice.nameplates()
        network.go_down()
        await asyncio.sleep(1)
        assert delays[12] < 3  # the connection in between served us, so it begins anew
        await alice.close(abandon=True)
    for number, delay in enumerate(delays[:12], 1):
        assert 0 <= delay - min(1.5**number, 60) < 1


@pytest.mark.parametrize(
    ("kind", "connections"), [("welcome", 1), ("allocated", 3), ("claimed", 3), ("message", 3), ("pong", 3)]
)
@simulated
async def test_a_server_that_owes_an_answer_is_given_up(network: Network, kind: str, connections: int) -> None:
    network.silent_from = kind
    heard = Heard()
    with pytest.raises(ServerGoneError, match="did not answer"):  # noqa: PT012 - either waits
        async with virtual_wormhole(1, heard) as alice:
            await alice.allocate_code()
            await alice.verifier()
    assert len(heard.of(Connecting)) == connections


async def closes(wormhole: Wormhole) -> None:
    async with asyncio.timeout(DEFAULT_OPTIONS.storing_seconds + DEFAULT_OPTIONS.close_seconds + 1):
        try:
            await wormhole.close()
        except (LonelyError, ServerGoneError) as error:
            if "peer came" not in str(error):
                raise


@pytest.mark.parametrize(("latency", "away"), [(0.0, 0.0), (0.0, 1.0), (0.0, 3.0), (2.4, 0.0)])
@simulated
async def test_a_close_waits_for_a_slow_server_five_seconds(network: Network, latency: float, away: float) -> None:
    network.latency = latency
    async with virtual_wormhole(1) as alice:
        await alice.allocate_code()
        network.go_down()
        asyncio.get_running_loop().call_later(away, lambda: setattr(network, "up", True))
        await alice.close(abandon=True)
    assert network.is_empty


@pytest.mark.parametrize("kind", ["allocated", "claimed", "released", "closed", "pong"])
@simulated
async def test_a_close_ends_though_an_answer_is_missing(network: Network, kind: str) -> None:
    network.silent_from = kind
    async with virtual_wormhole(1) as alice:
        waiting = asyncio.create_task(alice.allocate_code())
        await asyncio.sleep(0)
        await closes(alice)
        (end,) = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(end, str | WormholeError)


@pytest.mark.parametrize("fault", ["it is gone", "it greets and hangs up"])
@simulated
async def test_a_close_ends_though_the_server_is_of_no_use_any_more(network: Network, fault: str) -> None:
    heard = Heard()
    async with virtual_wormhole(1, heard) as alice, virtual_wormhole(2) as bob, virtual_wormhole(3) as carol:
        await meet(alice, bob)
        await alice.flush()
        await carol.allocate_code()
        network.go_down()
        network.frames_until_broken = 1
        network.up = fault != "it is gone"
        await bob.send(b"lost")
        waiting = asyncio.create_task(carol.verifier())
        await asyncio.sleep(0)
        await closes(alice)  # all was stored: no error
        with pytest.raises(ServerGoneError, match="not stored"):
            await closes(bob)
        await closes(carol)
        with pytest.raises(LonelyError):
            await waiting
    assert len(heard.of(Connecting)) < 50
