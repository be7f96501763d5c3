"""`restante serve` in operation: reload, trace, disk, descriptors, proxies; the addresses on which servers listen."""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import os
import pty
import re
import signal
import stat
import threading
from asyncio.subprocess import DEVNULL
from contextlib import suppress
from pathlib import Path
from socketserver import BaseRequestHandler, UnixDatagramServer
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from client.live import meet, wormhole
from restante.common.descriptors import OWN_DESCRIPTORS, required_descriptors
from restante.common.errors import Misuse
from restante.common.listening import ListenAddress, bind_unix_socket, parse_listen_address
from restante.common.net import EVERYBODY_TRUSTED, parse_networks, trusts_everybody
from restante.mailbox.core.limits import UNLIMITED, Limits
from restante.mailbox.server.main import Disk
from restante.mailbox.server.user_address import UNENCRYPTED, first_lines, user_address
from support.bounds import BOUND, bounded
from support.documents import Document
from support.loops import on_uvloop
from support.mailbox.clients import Clients
from support.mailbox.live import open_live
from support.mailbox.raw_socket import TEXT, RawSocket, frame, handshake
from support.processes import RESTANTE, Serving, called, database, environment, run, serving, spawn, started
from support.sqlite import select


async def welcomed(socket: RawSocket, *before: bytes, **headers: str) -> dict[str, Any]:
    """Send pieces, then a request with these headers, and return the welcome."""
    try:
        for piece in (*before, handshake(**headers)):
            socket.write(piece)
            await socket.writer.drain()
            await asyncio.sleep(0)
        await socket.head()
        welcome: dict[str, Any] = (await socket.hear())["welcome"]
        await socket.leave()
        return welcome
    finally:
        socket.cut()


async def welcome(port: int, *before: bytes, **headers: str) -> dict[str, Any]:
    return await welcomed(await RawSocket.connect(port), *before, **headers)


ERRORS = {"motd: U+001B is a control character": 'motd = "\\u001b[2J"', "is not TOML": "[serve"}
"""What is said of a file, and what is wrong in it."""

BEFORE = '[serve]\nmotd = "before"\n[serve.limits]\nmailbox_messages = 1\nmessage_bytes = 10000\n'
AFTER = (
    '[serve]\nmotd = "after"\nsignal_error = "file"\npermission = "hashcash"\nprune_after = 99\n'
    "[serve.limits]\nmailbox_messages = 2\nmessage_bytes = 100000\n"
)


async def test_sighup_applies_the_settings_that_a_running_server_can_change(tmp_path: Path) -> None:
    """A file with an error changes nothing."""
    file = tmp_path / "r.toml"
    file.write_text(BEFORE)
    options = ("--config", str(file), "--signal-error", "fixed here")
    async with serving(tmp_path / "data", options=options) as server, Clients() as clients:
        there = await clients.opened(server.url, "app", "a", "m")
        await there.call("add", phase="1", body="")
        assert (await there.refused(await there.say("add", phase="2", body="")))["error"] == "the mailbox is full"
        file.unlink()
        for message, line in {"No such file": "", **ERRORS}.items():
            if line:
                file.write_text(f'[serve]\npermission = "hashcash"\n{line}\n')
            lines = len(server.log)
            server.send(signal.SIGHUP)
            await server.until(f"a line for {message!r}", lambda lines=lines: len(server.log) > lines)  # type: ignore[misc]
            greeting = await welcome(server.port)
            assert (greeting["motd"], "permission-required" in greeting) == ("before", False), message
            [logged] = map(json.loads, server.log[lines:])
            assert logged["event"] == "the settings were not reloaded; the previous ones stay in effect"
            assert message in logged["error"]
        file.write_text(AFTER)
        server.send(signal.SIGHUP)
        for setting, before, after in (
            ("motd", "before", "after"),
            ("limits.mailbox_messages", 1, 2),
            ("permission", "none", "hashcash"),
        ):
            await server.logged("the setting has changed", setting=setting, before=before, after=after)
        fixed = "the setting is fixed; the file has no effect on it"
        await server.logged(fixed, setting="signal_error", by="--signal-error")
        await server.logged("the setting needs a restart", setting="prune_after", before=660.0, after=99.0)
        await server.logged("the setting needs a restart", setting="limits.message_bytes", before=10000, after=100000)
        await there.call("add", phase="2", body="")  # it was let in without work, and stays so
        assert (await there.refused(await there.say("add", phase="3", body="")))["error"] == "the mailbox is full"
        newcomer = await RawSocket.dial(server.port)
        greeting = (await newcomer.hear())["welcome"]
        assert (greeting["motd"], greeting["error"]) == ("after", "fixed here")
        assert greeting["permission-required"]["hashcash"]["bits"] == 20
        newcomer.say(type="ping", ping="0" * 15000)
        error = await newcomer.hear()
        assert (error["error"], error["hint"]) == ("the message is too big", "a message has at most 10000 bytes")
        newcomer.cut()


@pytest.mark.parametrize(
    "start",
    ["exec $0 $@", "exec $0 $1 $2 waku ${@:3}", "exec nohup $0 $@", "set -m; $0 $@ & echo $! >&2; cat"],
    ids=["mailbox", "waku", "nohup", "disowned"],
)
async def test_a_server_ends_with_its_terminal_unless_it_is_to_outlive_it(start: str, tmp_path: Path) -> None:
    (file := tmp_path / "r.toml").write_text("")
    ours, its = pty.openpty()
    options = ("--data", str(tmp_path / "d"), "--config", str(file), "--listen", "127.0.0.1:0", "--admin", "off")
    shell = ("setsid", "--ctty", "bash", "-c", f"echo $$ >&2; {start}", *RESTANTE, "serve", *options)
    server = Serving(await spawn(*shell, stdin=its, stdout=DEVNULL), tmp_path)
    os.close(its)
    await server.logged("listening")
    pid = int([line for line in server.log if line.isdigit()][-1])
    outlives = "nohup" in start or "cat" in start
    try:
        if outlives:
            os.close(ours)
        file.write_text('[serve]\nmotd = "hello"\n')
        os.kill(pid, signal.SIGHUP)
        nothing = "SIGHUP changes nothing: settings need a restart"
        await server.logged(nothing if "waku" in start else "the setting has changed")
        os.kill(pid, signal.SIGTERM) if outlives else os.close(ours)
        await server.ended()
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    drains, stopped = map(json.loads, server.log[-2:])
    assert (drains["signal"], stopped["event"]) == ("SIGTERM" if outlives else "SIGHUP", "stopped")


IDS = {"[1,\n\n2]": None, '"a\\nb"': "a\nb", "12": 12, "1.5": 1.5, "true": None, "null": None, '{"a": 1}': None}
"""Ids as a client may write them, and as they stand on one line of a trace."""


async def test_the_trace_has_the_times_of_receipt_commit_and_answer(tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.jsonl"  # in the data directory, which the server creates
    async with serving(path.parent, options=("--trace", str(path))) as server, Clients() as clients:
        a = await clients.bind(server.url, "app", "a")
        nameplate = (await a.call("allocate"))["nameplate"]
        mailbox = (await a.call("claim", nameplate=nameplate))["mailbox"]
        await a.call("open", mailbox=mailbox)
        added = await a.say("add", phase="secret-phase", body="secret-body")
        await a.answers(added)
        path.rename(tmp_path / "old.jsonl")  # as logrotate does
        server.send(signal.SIGHUP)
        async with bounded("a new trace"):
            while not path.exists():  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(0.01)
        socket = await RawSocket.dial(server.port)
        socket.say(type="dance", id="x" * 101, body="secret-body")
        socket.say(no="type")
        for identifier in IDS:
            socket.write(frame(TEXT, b'{"type": "ping", "ping": 1, "id": %b}' % identifier.encode()))
        for _ in range(4 + 2 * len(IDS)):
            await socket.hear()
        await a.call("ping", ping=1)
        await socket.hang_up()
        await server.stop()
    text = (tmp_path / "old.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["command"] for line in lines] == ["bind", "allocate", "claim", "open", "add"]
    assert {line["connection"] for line in lines} == {1}
    assert [line["id"] for line in lines] == [command.fields["id"] for command in a.said][:5]
    for line, command in zip(lines, a.said, strict=False):
        assert list(line) == ["connection", "command", "id", "server_rx", "commit_began", "commit", "server_tx"]
        assert command.ack is not None
        assert line["server_tx"] == pytest.approx(command.ack["server_tx"], abs=1e-6)
        if command.kind in {"allocate", "claim", "add"}:
            assert line["server_rx"] <= line["commit_began"] <= line["commit"] <= line["server_tx"]
    assert lines[4]["server_rx"] == a.heard[0]["server_rx"]
    later = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["connection"], line["command"], line["id"]) for line in later] == [
        (2, "", None),
        (2, None, None),
        *((2, "ping", identifier) for identifier in IDS.values()),
        (1, "ping", a.said[-1].fields["id"]),
    ]
    assert {(line["commit_began"], line["commit"]) for line in later} == {(None, None)}
    for secret in ("secret", mailbox, '"app"', f'"{nameplate}"'):
        assert secret not in text + path.read_text()


async def test_a_trace_on_a_full_disk_is_logged_once_and_the_last_counts_at_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", options=("--trace", "/dev/full")) as server, Clients() as clients:
        sender = await clients.opened(server.url, "app", "a", "m")
        server.send(signal.SIGHUP)
        nothing = "SIGHUP changed no setting; only those in the file of --config can change without a restart"
        await server.logged(nothing)
        await sender.call("add", phase="pake", body="00")
        visitor = await clients.opened(server.url, "app", "b", "m")
        for client in (sender, visitor):
            await client.call("close", mood="lonely")
        await server.stop()
        assert sum("the trace could not be written" in line for line in server.log) <= 2
        await server.logged("ended mailboxes had visitors", mailboxes=1, visitors=1)


async def test_a_server_goes_on_although_nobody_reads_its_log_and_its_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    os.mkfifo(trace)
    trace_reader = os.open(trace, os.O_RDONLY | os.O_NONBLOCK)
    log_reader, stderr = os.pipe()
    for pipe in (trace_reader, log_reader):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
    options = ("--data", tmp_path / "data", "--admin", "off", "--listen", "127.0.0.1:0", "--trace", trace)
    process = await asyncio.create_subprocess_exec(
        *RESTANTE, "serve", *map(str, options), stderr=stderr, env=environment()
    )
    try:
        async with bounded("its first line"):
            line = json.loads(await asyncio.to_thread(os.read, log_reader, 4096))
        os.write(stderr, b"." * 4096)  # the log is full
        process.send_signal(signal.SIGHUP)
        async with Clients() as clients:
            client = await clients.bind(line["url"], "app", "side")
            for number in range(50):  # more lines than the trace takes
                await client.call("ping", ping=number)
            os.close(log_reader)  # from now on, a write is an error
            await client.call("ping", ping="still there?")
        process.send_signal(signal.SIGTERM)
        async with bounded("its end"):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        for descriptor in (trace_reader, stderr):
            os.close(descriptor)


async def test_without_room_on_the_disk_the_server_refuses_new_data_and_accepts_closes(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text("")
    async with serving(tmp_path / "data", options=("--config", str(file))) as server, Clients() as clients:
        a = await clients.bind(server.url, "app", "a")
        mailbox = (await a.call("claim", nameplate="4"))["mailbox"]
        await a.call("open", mailbox=mailbox)
        await a.call("add", phase="1", body="")
        file.write_text("[serve.limits]\nfree_disk = 1000000000000000000\n")
        server.send(signal.SIGHUP)
        await server.logged("the disk is nearly full: the server accepts nothing new until there is room")
        b = await clients.bind(server.url, "app", "b")
        for client, kind, fields in (
            (a, "add", {"phase": "2", "body": ""}),
            (b, "allocate", {}),
            (b, "claim", {"nameplate": "5"}),
            (b, "open", {"mailbox": "other"}),
        ):
            error = await client.refused(await client.say(kind, **fields))
            assert (error["error"], "disk" in error["hint"]) == ("the server is full", True)
        await b.call("open", mailbox=mailbox)  # what is there can still be called for
        await b.until("the message", lambda: bool(b.heard))
        await a.call("release")
        await a.call("close", mood="happy")
        await b.call("close", mood="happy")
        file.write_text("")
        server.send(signal.SIGHUP)
        await server.logged("the disk has room again")
        (tmp_path / "data").rename(tmp_path / "elsewhere")  # nobody knows how much is free
        lines = len(server.log)
        await server.until("no room", lambda: any("the disk is nearly full" in line for line in server.log[lines:]))
        (tmp_path / "elsewhere").rename(tmp_path / "data")
        await server.until("room", lambda: any("the disk has room again" in line for line in server.log[lines:]))
        await (await clients.bind(server.url, "app", "c")).call("allocate")


async def test_a_disk_that_does_not_answer_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, asked, statvfs = threading.Event(), threading.Semaphore(0), os.statvfs

    def hang(path: Path) -> os.statvfs_result:
        asked.release()
        assert go_on.wait(BOUND)
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", hang)
    async with open_live(tmp_path) as here, Clients() as clients:
        measured, disk = here.commit_loop.measurements, Disk(tmp_path, here.commit_loop)
        client = await clients.opened(here.url, "app", "a", "m")
        for _ in range(3):
            disk.look()
            await client.call("add", phase="1", body="00")
        assert asked.acquire(timeout=BOUND)
        assert not asked.acquire(blocking=False), "one call at a time"
        assert math.isnan(measured.disk_free)
        go_on.set()
        async with bounded("an answer"):
            while math.isnan(measured.disk_free):
                await client.fence()
        here.commit_loop.dispatcher.policy.limits = Limits(free_disk=2**60)
        async with bounded("no room"):
            while here.commit_loop.dispatcher.state.room:
                disk.look()
                await client.fence()
        disk.close()


PLAIN = ("ws://10.0.0.5:4000/v1", True, True)


@pytest.mark.parametrize(
    ("listen", "shown", "options", "url"),
    [
        ("127.0.0.1:4000", "127.0.0.1:4000", {}, ("ws://127.0.0.1:4000/v1", False, False)),
        ("0.0.0.0:4000", "0.0.0.0:4000", {}, PLAIN),
        ("*:4000", "[::]:4000", {}, ("ws://[fd00::5]:4000/v1", True, True)),
        ("10.0.0.5:4000", "10.0.0.5:4000", {}, PLAIN),
        ("plain:*:4000", "0.0.0.0:4000", {}, (*PLAIN[:2], False)),
        ("*:4000", "0.0.0.0:4000", {"proxies": True}, (*PLAIN[:2], False)),
        ("*:4000", "[::]:4000", {"tls": True, "names": ["a.example"]}, ("wss://a.example:4000/v1", True, False)),
        ("[::1]:4000", "[::1]:4000", {"tls": True, "names": ["a.example"]}, ("wss://[::1]:4000/v1", False, False)),
        ("*:443", "[::]:443", {"tls": True}, ("wss://[fd00::5]/v1", True, False)),
        ("unix:/s", "unix:/s", {}, ("unix:/s", False, False)),
    ],
)
def test_the_address_for_users_can_be_used_by_them(
    listen: str, shown: str, options: dict[str, Any], url: tuple[str, bool, bool]
) -> None:
    """And whether others can use it, and whether there is a warning that it is not encrypted."""
    own = {4: "10.0.0.5", 6: "fd00::5"}.__getitem__
    assert user_address(parse_listen_address(listen, "--listen"), shown, **{"tls": False, **options}, own=own) == url


@pytest.mark.parametrize(("program", "first"), [("", "restante"), ("./run", "./run")])
def test_the_first_lines_are_the_address_and_commands_that_this_machine_has(
    program: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_RESTANTE_PROGRAM", program)
    here = user_address(parse_listen_address("127.0.0.1:4000", "--listen"), "127.0.0.1:4000", tls=False)
    lines = first_lines([here], proxies=False).splitlines()
    assert lines[0] == "Users of this machine connect to ws://127.0.0.1:4000/v1"
    assert [line.split()[:2] for line in lines[-2:]] == [[first, "send"], [first, "receive"]]


async def test_a_server_of_every_interface_logs_a_usable_address_and_what_is_unsafe(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", options=("--listen", "0.0.0.0:0")) as server:
        assert not server.url.startswith("ws://0.0.0.0")
        assert (await server.logged(UNENCRYPTED))["url"] == server.url
    for program in (RESTANTE, (*RESTANTE, "waku")):
        options = ("--listen", "proxy:0.0.0.0:0", "--trust-proxy", "::/0")
        async with started(tmp_path / program[-1], program, options) as server:
            await server.logged(EVERYBODY_TRUSTED)
    assert not trusts_everybody(parse_networks(["0.0.0.0/0"], ""), ["127.0.0.1:1", "[::1]:1", "unix:/s"])
    assert not trusts_everybody(parse_networks(["10.0.0.0/8"], ""), ["0.0.0.0:1"])


async def test_a_server_with_too_few_descriptors_does_not_start_and_says_how_many_suffice(tmp_path: Path) -> None:
    needed = required_descriptors(OWN_DESCRIPTORS)
    options = ("--admin", "127.0.0.1:0", "--trace", str(tmp_path / "trace"))

    def program(limit: int) -> tuple[str, ...]:
        return ("prlimit", f"--nofile={limit}:{limit}", *RESTANTE)

    for limit in (20, needed - 1):
        ended = run(*program(limit), "serve", "--data", tmp_path / "data", "--listen", "127.0.0.1:0", *options)
        too_few = f"the server may open {limit} file descriptors and needs {needed}"
        assert (ended.returncode, ended.stderr) == (2, f"restante: {too_few}: raise the limit (ulimit -Hn)\n")
    async with serving(tmp_path / "data", program(needed), options) as server:
        assert (await welcome(server.port))["your-address"]


async def test_when_descriptors_run_out_further_connections_wait(tmp_path: Path) -> None:
    soft, hard = 250, 500
    program = ("prlimit", f"--nofile={soft}:{hard}", *RESTANTE)
    async with serving(tmp_path / "data", program) as server:
        dialled: list[asyncio.Task[RawSocket]] = []

        def full() -> bool:
            return any("file descriptors are short" in line for line in server.log)

        while not full():
            assert len(dialled) < 2 * hard
            some = [asyncio.create_task(RawSocket.dial(server.port)) for _ in range(20)]
            dialled += some
            async with bounded("twenty who are inside, or no room for them"):
                while not full() and not all(task.done() for task in some):
                    await asyncio.wait(some, timeout=0.05)
        late = asyncio.create_task(RawSocket.dial(server.port))
        inside = [task for task in dialled if task.done()]
        assert soft < len(inside) < hard, "the limit was raised, and is kept"
        first = inside[0].result()
        assert (await first.hear())["type"] == "welcome"
        for _ in range(50):  # turns of the server's loop
            await first.is_served()
        assert not late.done(), "it waits: nobody has left"
        for task in inside:
            await task.result().hang_up()
        for task in {*dialled, late}.difference(inside):
            socket = await task  # it waited, and was not refused
            assert (await socket.hear())["type"] == "welcome"
            socket.cut()
        await server.logged("new connections are accepted again")


async def test_claims_are_charged_to_all_addresses_that_a_proxy_s_headers_name(tmp_path: Path) -> None:
    limits = replace(UNLIMITED, address_claims_at_once=3, address_claims=0.01)
    async with open_live(tmp_path, trusted=["127.0.0.0/8"], limits=limits) as live:
        answers = []
        with structlog.testing.capture_logs() as logged:
            for number in range(5):
                socket = await live.dial(X_Real_IP="198.51.100.7", X_Forwarded_For=f"203.0.113.{number}")
                socket.say(type="bind", appid="x", side="a")
                socket.say(type="claim", nameplate=str(number))
                answers.append([(await socket.hear())["type"] for _ in range(4)][-1])
        assert answers == ["claimed", "claimed", "claimed", "error", "error"]
        [line] = logged
        assert line["event"] == (
            "X-Forwarded-For and X-Real-IP of a trusted proxy name different clients: both addresses are charged."
            " Configure the proxy to set both headers, or to remove the one that it does not set"
        )


async def test_a_trusted_proxy_s_clients_are_told_their_own_addresses_and_counted_by_them(tmp_path: Path) -> None:
    options = ("--trust-proxy", "127.0.0.0/8", "--limit", "address_connections=1")
    async with serving(tmp_path / "data", options=options) as server:
        for _ in range(2):  # a connection that is over counts no more
            greeting = await welcome(server.port, X_Forwarded_For="203.0.113.9, 198.51.100.7")
            assert greeting["your-address"] == {"ipv4": "198.51.100.7", "port": 0}
        greeting = await welcome(server.port, X_Real_IP="2001:db8::1", X_Real_Port="99")
        assert greeting["your-address"] == {"ipv6": "2001:db8::1", "port": 99}
        one = await RawSocket.dial(
            server.port, X_Forwarded_For="6.6.6.6\r\nX-Forwarded-For: 203.0.113.9, 198.51.100.8"
        )
        assert (await one.hear())["welcome"]["your-address"] == {"ipv4": "198.51.100.8", "port": 0}
        two = await RawSocket.dial(server.port, X_Real_IP="198.51.100.8")
        assert (await two.hear())["type"] == "welcome"
        refused = await two.hear()
        assert refused["error"] == "too many connections from your address"
        assert refused["hint"] == "1 may be open at a time"
        assert await two.closed() == 1008
        one.say(type="bind", appid="x", side="a")
        assert (await one.hear())["type"] == "ack"
        for socket in (one, two):
            socket.cut()
        await server.stop()
        assert not any("198.51" in line or "203.0" in line for line in server.log)
    [(address_id,)] = select(database(tmp_path / "data"), "SELECT address_id FROM usage_client_versions")
    assert len(address_id) == 10


async def test_a_proxy_that_is_not_trusted_is_noticed_once(tmp_path: Path) -> None:
    async with open_live(tmp_path) as live:
        with structlog.testing.capture_logs() as logged:
            for _ in range(3):
                socket = await live.dial(X_Forwarded_For="198.51.100.7", X_Real_IP="198.51.100.7", X_Real_Port="no")
                assert (await socket.hear())["welcome"]["your-address"]["ipv4"] == "127.0.0.1"
    [line] = [str(line) for line in logged if "--trust-proxy" in line["event"]]
    assert "198.51" not in line


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:4000", {"host": "127.0.0.1", "port": 4000}),
        ("[::1]:4000", {"host": "::1", "port": 4000}),
        ("*:4000", {"port": 4000}),  # every interface
        ("unix:/run/r", {"path": "/run/r", "is_unix": True, "plain": True}),
        ("fd:999", {"descriptor": 999}),
        ("proxy:*:1", {"port": 1, "proxied": True}),
        ("plain:*:1", {"port": 1, "plain": True}),
        ("proxy:plain:[::1]:1", {"host": "::1", "port": 1, "proxied": True, "plain": True}),
    ],
)
def test_an_address_is(text: str, parts: dict[str, Any]) -> None:
    assert parse_listen_address(text, "--listen") == ListenAddress(text, **parts)


def test_what_is_no_address_is_refused_with_the_forms() -> None:
    forms = "--listen: '.*' is not HOST:PORT, unix:PATH or fd:N, with plain: or proxy:"
    wrong = "4000 :4000 unix: fd:x fd: fd:2147483648 proxy: plain:4000 host: host:port host:70000 host:-1 host:٣"
    schemes = "tcp:host:1 ws://[::1]:1"
    for text in ("", *wrong.split(), *schemes.split()):
        with pytest.raises(Misuse, match=forms):
            parse_listen_address(text, "--listen")


async def your_address(path: Path) -> dict[str, Any]:
    return dict((await welcomed(RawSocket(*await asyncio.open_unix_connection(str(path)))))["your-address"])


async def test_a_server_listens_on_several_addresses_and_removes_its_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "data" / "s"  # in the data directory, which the server creates
    options = ("--listen", "127.0.0.1:0", "--listen", "[::1]:0", "--listen", f"unix:{path}")
    async with serving(tmp_path / "data", options=options) as server:
        await server.logged("listening", url=f"unix:{path}")
        assert len([line for line in server.log if "ws://[::1]:" in line]) == 1
        alice, bob = wormhole(server.url), wormhole(server.url)
        async with alice, bob:
            await meet(alice, bob)
        assert await your_address(path) == {"ipv4": "127.0.0.1", "port": 0}
        await server.stop()
    assert not path.exists()


@on_uvloop
async def test_a_server_makes_and_removes_its_own_unix_socket_and_no_other_file(tmp_path: Path) -> None:
    """One that nobody listens on any more is replaced."""
    path, taken, file = tmp_path / "s", tmp_path / "taken", tmp_path / "file"
    with bind_unix_socket(str(path), "--listen") as left:
        left.listen()
    async with open_live(tmp_path / "data") as live:
        listeners = live.server.listeners
        for own in (path, taken):
            await listeners.listen(parse_listen_address(f"unix:{own}", "--listen"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        listeners.stop_accepting(0)
        await listeners.check_descriptors(0)
        assert await your_address(path), "it is there again after a shortage"
        taken.unlink()
        file.touch()
        with bind_unix_socket(str(taken), "--listen"):
            with pytest.raises(Misuse, match="is no socket"):
                await listeners.listen(parse_listen_address(f"unix:{file}", "--listen"))
            names = {name for name in os.listdir(tmp_path) if name != "data"}  # noqa: PTH208 - ASYNC240
            assert names == {"taken", "file"}


def test_what_could_serve_nobody_is_refused_and_the_guide_explains_the_message(tmp_path: Path) -> None:
    guide = Document("docs/mailbox/operating.md").text.partition("## When something is wrong")[2]
    table = guide.partition("The server stops, or hangs:")[0]
    rows = re.findall(r"^\| (.+?) \| .+ \|$", table, re.MULTILINE)
    explained = [re.escape(text).replace("…", ".+") for row in rows for text in re.findall(r"`([^`]+)`", row)]
    (tmp_path / "file").write_text("mine")
    no_proxy = "'proxy:127.0.0.1:0' needs a proxy that may name clients: name its network with --trust-proxy"
    no_key = "--tls-cert and --tls-key belong together: set both or neither"
    wrong_traces = {"/missing/t": "No such file or directory", "": "Is a directory", "/file/t": "Not a directory"}
    two_of_one = "the server listens on port 4000 already (--listen): name another port"
    twice = f"--listen: {tmp_path}/own is named twice: leave one out"
    datagrams = UnixDatagramServer(str(tmp_path / "log"), BaseRequestHandler)
    with bind_unix_socket(str(tmp_path / "s"), "--listen") as taken, datagrams:
        taken.listen()
        cases = (
            ("serve --listen fd:999", "fd:999 is no socket: Bad file descriptor"),
            ("serve --listen fd:0", "fd:0 is no socket: Socket operation on non-socket"),
            ("serve --listen proxy:127.0.0.1:0", no_proxy),
            ("waku serve --listen proxy:127.0.0.1:0", no_proxy),
            ("serve --tls-cert c.pem", no_key),
            (f"serve --tls-cert {tmp_path}/missing --tls-key {tmp_path}/missing", "No such file or directory"),
            (f"serve --listen unix:{tmp_path}/file", "is there already and is no socket"),
            (f"serve --listen unix:{tmp_path}/s", "Address already in use"),
            (f"serve --listen unix:{tmp_path}/log", "Address already in use"),
            (f"serve --listen unix:{tmp_path}/own --listen unix:{tmp_path}/./own", twice),
            ("serve --listen *:4000 --listen [::1]:4000", two_of_one),
            ("waku serve --listen [::1]:4000 --admin [::1]:4000", two_of_one),
            (f"serve --listen unix:{tmp_path}/missing/s", "No such file or directory"),
            *(
                (f"serve --trace {tmp_path}{path}", f"cannot write {tmp_path}{path}: {reason} (--trace)")
                for path, reason in wrong_traces.items()
            ),
        )
        for number, (command, message) in enumerate(cases):
            data = tmp_path / f"data-{number}"
            done = called(*command.replace("serve", f"serve --data {data} --admin off", 1).split())
            assert (done.returncode, message in done.stderr) == (75 if "in use" in message else 2, True), done.stderr
            clear = message in {no_proxy, no_key, two_of_one, twice}
            clear |= message.endswith(("(--trace)", "in use", "is no socket"))
            assert clear or any(re.search(text, done.stderr) for text in explained), done.stderr
            assert not data.exists()
    assert "signals" not in {thread.name for thread in threading.enumerate()}
    assert (tmp_path / "file").read_text() == "mine"
