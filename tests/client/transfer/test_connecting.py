"""Two sides of a transfer connect, whoever else is there, or both have an error at once."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import threading
from contextlib import closing, suppress
from typing import Any, Final, Self
from unittest.mock import patch

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from client.liar import Serve, listening
from restante.client.errors import TransferError
from restante.client.tasks import in_thread
from restante.client.transit import connecting
from restante.client.transit.connecting import Transit, TransitOptions
from restante.client.transit.hints import Address, Hints, Relay
from restante.client.transit.pipe import RecordPipe
from restante.client.transit.records import GO, NEVERMIND, RELAY_READY, Role, TransitKeys
from restante.common.errors import AddressInUse, Misuse
from support.bounds import BOUND, bounded
from support.dice import Seeded
from support.effort import examples
from support.ports import held_everywhere, nobodys_port

KEY: Final = bytes(range(32))
SENDER, RECEIVER = TransitKeys.derive(KEY, Role.SENDER), TransitKeys.derive(KEY, Role.RECEIVER)
NO_RELAY: Final = TransitOptions(relays=())
DIAL_ONLY: Final = TransitOptions(relays=(), listen=False)


class Side(Transit):
    def __init__(self, role: Role, options: TransitOptions = NO_RELAY) -> None:
        super().__init__(options, Seeded(list(Role).index(role)))
        self.role = role
        self.keys = SENDER if role is Role.SENDER else RECEIVER

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(None, None, None)

    async def meet(self, theirs: Hints) -> RecordPipe:
        return await self.connect(self.keys, self.role, theirs)


async def exchange(one: RecordPipe, other: RecordPipe) -> None:
    with closing(one), closing(other):
        one.send(b"there")
        assert bytes(await asyncio.to_thread(other.receive)) == b"there"
        other.send(b"back")
        assert bytes(await asyncio.to_thread(one.receive)) == b"back"


async def meet(one: Side, other: Side, *earlier: Address) -> None:
    async with bounded("a connection"), one, other:
        hints = Hints((*earlier, *one.hints.direct))
        await exchange(*await asyncio.gather(one.meet(other.hints), other.meet(hints)))


AT_ONCE: Final = connecting.TRANSIT_SECONDS / 2


@pytest.mark.parametrize("options", [(NO_RELAY, NO_RELAY), (NO_RELAY, DIAL_ONLY), (DIAL_ONLY, NO_RELAY)])
async def test_the_sides_connect_whichever_of_them_listens(options: tuple[TransitOptions, TransitOptions]) -> None:
    await meet(Side(Role.SENDER, options[0]), Side(Role.RECEIVER, options[1]))


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
async def test_the_address_of_one_version_of_ip_is_enough(
    family: socket.AddressFamily, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        socket.create_server((host, 0), family=family).close()
    except OSError:
        pytest.skip(f"this machine has no {host}")
    monkeypatch.setattr(connecting, "own_addresses", lambda: [(family, host)])
    sender = Side(Role.SENDER)
    await meet(sender, Side(Role.RECEIVER, DIAL_ONLY))
    assert [address.host for address in sender.hints.direct] == [host]


@pytest.mark.parametrize(
    ("own", "hinted"),
    [
        (["127.0.0.1", "192.0.2.7", "::1", "2001:db8::7", "fe80::1", "169.254.0.1"], ["192.0.2.7", "2001:db8::7"]),
        (["127.0.0.1", "::1", "2001:db8::7"], ["2001:db8::7"]),
        (["127.0.0.1", "::1", "fe80::1"], ["127.0.0.1", "::1"]),
        (["127.0.0.1"], ["127.0.0.1"]),
        ([], []),
    ],
)
def test_loopback_is_the_last_choice(own: list[str], hinted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # A test cannot choose the addresses of its machine.
    monkeypatch.setattr(connecting, "_ipv4_addresses", lambda: [address for address in own if ":" not in address])
    monkeypatch.setattr(connecting, "_ipv6_addresses", lambda: [address for address in own if ":" in address])
    assert [address for _, address in connecting.own_addresses()] == hinted


async def test_without_listening_no_address_is_told() -> None:
    for options in (DIAL_ONLY, TransitOptions(relays=(), proxy="socks5://127.0.0.1:1")):
        async with Side(Role.SENDER, options) as sender:
            assert sender.hints == Hints()


async def test_a_port_that_is_chosen_is_the_one_that_is_told_and_is_not_shared() -> None:
    with held_everywhere() as port:
        options = TransitOptions(relays=(), port=port)
        for _ in range(2):  # the first connection is in TIME_WAIT then
            async with bounded("a connection"), Side(Role.SENDER, options) as sender, Side(Role.RECEIVER) as receiver:
                assert {address.port for address in sender.hints.direct} == {port}
                with pytest.raises(AddressInUse, match=f"port {port}: Address already in use: stop"):
                    Transit(options, Seeded(1)).__enter__()
                await exchange(*await asyncio.gather(sender.meet(Hints()), receiver.meet(sender.hints)))


@pytest.mark.parametrize(
    "option", [*({"port": port} for port in (-1, 65536, True, 1.0, "80")), {"proxy": "http://a"}]
)
def test_an_option_that_cannot_be_used_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=r"^`port` is a number|^a proxy's URL has a port"):
        TransitOptions(**option)


def test_the_text_of_transit_options_has_neither_user_nor_password_of_the_proxy() -> None:
    options = TransitOptions(relays=(), proxy="socks5://anna:secret@example.org:1080")
    assert "proxy='socks5://***@example.org:1080', connect_seconds=" in repr(options)
    assert "anna" not in f"{options} {options!r}"
    assert "proxy=None" in repr(NO_RELAY)


async def test_visitors_that_say_nothing_do_not_keep_the_peer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "MAX_VISITORS", 4)
    monkeypatch.setattr(connecting, "VISITOR_SECONDS", 10 * BOUND)
    async with bounded("a connection"), Side(Role.SENDER) as sender, Side(Role.RECEIVER, DIAL_ONLY) as receiver:
        meeting = asyncio.create_task(sender.meet(Hints()))
        where = sender.hints.direct[0]
        visitors = [await asyncio.open_connection(where.host, where.port) for _ in range(12)]
        await exchange(*await asyncio.gather(meeting, receiver.meet(sender.hints)))
        for _, writer in visitors:
            writer.close()


async def test_a_receiver_keeps_the_connection_that_the_sender_may_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has shown the sender's line is no visitor any more, whoever comes after it."""
    monkeypatch.setattr(connecting, "MAX_VISITORS", 4)
    async with bounded("a connection"), Side(Role.RECEIVER) as receiver:
        meeting = asyncio.create_task(receiver.meet(Hints()))
        where = receiver.hints.direct[0]
        reader, writer = await asyncio.open_connection(where.host, where.port)
        writer.write(SENDER.line)
        assert await reader.readexactly(len(RECEIVER.line)) == RECEIVER.line
        visitors = [await asyncio.open_connection(where.host, where.port) for _ in range(12)]
        writer.write(GO)
        (await meeting).close()
        for _, visitor in [*visitors, (reader, writer)]:
            visitor.close()


async def test_names_that_nobody_resolves_do_not_delay_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, resolve = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        if host.endswith(".example") and not options.get("flags"):
            answered.wait()
        return resolve(host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    names = tuple(Address(f"n{number}.example", 1) for number in range(19))
    try:
        await meet(Side(Role.SENDER), Side(Role.RECEIVER, DIAL_ONLY), *names)
    finally:
        answered.set()
    for thread in threading.enumerate():
        if thread.name == "restante":
            thread.join()


async def test_more_transfers_than_the_loop_has_threads_do_not_wait_for_one_another() -> None:
    together = threading.Barrier(50)
    async with bounded("the end of all"):
        await asyncio.gather(*(in_thread(together.wait, together.abort) for _ in range(50)))


@pytest.mark.parametrize("turns", range(12))
async def test_whenever_a_connection_is_cancelled_no_socket_is_left(turns: int) -> None:
    """A socket that is left open is a warning, and a warning is an error here."""
    async with bounded("the end"), Side(Role.SENDER) as sender, Side(Role.RECEIVER) as receiver:
        meeting = [asyncio.create_task(sender.meet(receiver.hints)), asyncio.create_task(receiver.meet(sender.hints))]
        for _ in range(turns + 1):  # a coroutine that never began is none of ours
            await asyncio.sleep(0)
        for _ in range(3):  # a person presses a key again
            for task in meeting:
                task.cancel()
            await asyncio.sleep(0)
        for end in await asyncio.gather(*meeting, return_exceptions=True):
            if isinstance(end, RecordPipe):
                end.close()
    gc.collect()


async def test_a_sender_that_dials_a_peer_that_only_listens_speaks_first() -> None:
    """As Go's receiver, which writes its line when it has read the sender's (ww file_transport.go:305)."""
    chosen: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def go_s_receiver(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(SENDER.line)) == SENDER.line
        writer.write(RECEIVER.line)
        chosen.set_result(await reader.readexactly(len(GO)))

    async with bounded("a connection"), listening(go_s_receiver) as port, Side(Role.SENDER, DIAL_ONLY) as sender:
        (await sender.meet(Hints((Address("127.0.0.1", port),)))).close()
        assert await chosen == GO


@pytest.mark.parametrize("role", [Role.SENDER, Role.RECEIVER])
async def test_without_any_way_there_is_an_error_at_once_and_it_names_the_addresses(role: Role) -> None:
    address = Address("127.0.0.1", nobodys_port())
    by_https, by_socks = (TransitOptions(relays=(), proxy=f"{scheme}://{address}") for scheme in ("https", "socks5"))
    for options, hints, reason in (
        (DIAL_ONLY, Hints((address,)), rf"^no connection to the other side \({address}: Connection refused\)$"),
        (by_https, Hints((address,)), rf"\({address}: files cannot go through an https:// proxy: name it as http://"),
        (by_socks, Hints((address,)), rf"\({address}: the proxy cannot be used: Connection refused\)$"),
        (DIAL_ONLY, Hints(), "names no address, this computer does not listen, and there is no relay"),
    ):
        async with bounded("an error", AT_ONCE), Side(role, options) as ours:
            with pytest.raises(TransferError, match=reason):
                await ours.meet(hints)


async def test_the_error_says_that_the_relay_refused() -> None:
    refusing = speaking([b"bad handshake\n"], "close")
    async with bounded("an error", AT_ONCE), listening(refusing) as port, Side(Role.SENDER, DIAL_ONLY) as ours:
        hints = Hints((), (Relay((Address("127.0.0.1", port),)),))
        with pytest.raises(TransferError, match=rf"\(127\.0\.0\.1:{port}: the relay refused the connection\)$"):
            await ours.meet(hints)


async def test_too_few_descriptors_end_it_if_nothing_is_left_to_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(_self: socket.socket) -> None:
        raise OSError(errno.EMFILE, "")

    async with bounded("an error", AT_ONCE), Side(Role.SENDER) as sender:
        where = sender.hints.direct[0]
        meeting = asyncio.create_task(sender.meet(Hints()))
        monkeypatch.setattr(socket.socket, "accept", no_more)
        with socket.create_connection((where.host, where.port)), pytest.raises(TransferError, match="no connection"):
            await meeting


RESET: Final = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER with zero seconds: to close is to reset (socket(7))."""

LINES: Final = [SENDER.line, RECEIVER.line, GO, NEVERMIND, RELAY_READY, b"bad handshake\n", b"impatient\n"]
PIECES: Final = (
    st.sampled_from(LINES)
    | st.builds(lambda line, end: line[:end], st.sampled_from(LINES), st.integers(0, 89))
    | st.binary(max_size=100)
    | st.binary(min_size=70_000, max_size=70_000)
)
SPEECHES: Final = st.lists(PIECES, max_size=4)
ROLES: Final = st.sampled_from(list(Role))


def chosen_after(role: Role, by_relay: bool) -> bytes:
    """Return what a side of this role hears before it uses the connection. Only the peer knows it."""
    ready = RELAY_READY if by_relay else b""
    return ready + (RECEIVER.line if role is Role.SENDER else SENDER.line + GO)


def speaking(speech: list[bytes], end: str) -> Serve:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in speech:
            writer.write(piece)
            await writer.drain()
        if end == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        elif end == "silent":
            await reader.read(-1)

    return speak


@examples(40)
@given(ROLES, st.sampled_from(["hint", "visitor", "relay"]), SPEECHES, st.sampled_from(["close", "reset", "silent"]))
@example(Role.RECEIVER, "hint", [SENDER.line], "silent").via("it never chooses")
@example(Role.RECEIVER, "hint", [SENDER.line + NEVERMIND], "close").via("it chooses another connection")
def test_whatever_somebody_says_the_peer_is_met(role: Role, where: str, speech: list[bytes], end: str) -> None:
    assume(not b"".join(speech).startswith(chosen_after(role, where == "relay")))
    speaker = speaking(speech, end)
    visits: list[asyncio.Task[None]] = []

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await speaker(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def meets() -> None:
        ours, theirs = Side(role), Side(role.peer)
        async with bounded("a connection"), listening(speaker) as port, ours, theirs:
            address, direct = Address("127.0.0.1", port), theirs.hints.direct
            hints = {
                "hint": Hints((address, *direct)),
                "visitor": Hints(direct),
                "relay": Hints(direct, (Relay((address,)),)),
            }
            meeting = asyncio.create_task(ours.meet(hints[where]))
            await asyncio.sleep(0)
            if where == "visitor":
                own = ours.hints.direct[0]
                with suppress(ConnectionError):
                    reader, writer = await asyncio.open_connection(own.host, own.port)
                    visits.append(asyncio.create_task(visit(reader, writer)))
            await exchange(*await asyncio.gather(meeting, theirs.meet(ours.hints)))
            await asyncio.gather(*visits)

    with patch.object(connecting, "RELAY_DELAY_SECONDS", 0.0):
        asyncio.run(meets())


@examples(40)
@given(ROLES, st.booleans(), SPEECHES, st.sampled_from(["close", "reset"]))
def test_who_speaks_in_place_of_the_peer_is_an_error(
    role: Role, by_relay: bool, speech: list[bytes], end: str
) -> None:
    assume(not b"".join(speech).startswith(chosen_after(role, by_relay)))

    async def fails() -> str:
        async with (
            bounded("an error", AT_ONCE),
            listening(speaking(speech, end)) as port,
            Side(role, DIAL_ONLY) as ours,
        ):
            address = Address("127.0.0.1", port)
            hints = Hints((), (Relay((address,)),)) if by_relay else Hints((address,))
            with pytest.raises(TransferError) as failed:
                await ours.meet(hints)
        return str(failed.value)

    reason = asyncio.run(fails())
    assert reason.startswith("no connection to the other side (127.0.0.1:")
    assert reason.isprintable()
