"""Where the servers listen: the forms of an address, Unix sockets, inherited sockets, and several at a time."""

from __future__ import annotations

import asyncio
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from client.live import meet, wormhole
from restante.common.errors import Misuse
from restante.common.listening import ListenAddress, listen_address, unix_socket
from support.bounds import bounded
from support.documents import Document
from support.loops import on_uvloop
from support.mailbox.live import open_live
from support.mailbox.raw_socket import RawSocket, handshake
from support.processes import called, environment, serving

GUIDE = Document("docs/mailbox/operating.md")

FORMS = {
    "IPv4": ("127.0.0.1:4000", ListenAddress("127.0.0.1:4000", "127.0.0.1", 4000)),
    "IPv6": ("[::1]:4000", ListenAddress("[::1]:4000", "::1", 4000)),
    "every interface": ("*:4000", ListenAddress("*:4000", None, 4000)),
    "a Unix socket": ("unix:/run/r", ListenAddress("unix:/run/r", path="/run/r", is_unix=True, plain=True)),
    "inherited": ("fd:999", ListenAddress("fd:999", descriptor=999)),
    "behind a proxy": ("proxy:*:1", ListenAddress("proxy:*:1", None, 1, proxied=True)),
    "without TLS": ("plain:*:1", ListenAddress("plain:*:1", None, 1, plain=True)),
    "both": ("proxy:plain:[::1]:1", ListenAddress("proxy:plain:[::1]:1", "::1", 1, proxied=True, plain=True)),
    "a Unix socket behind a proxy": (
        "proxy:unix:r",
        ListenAddress("proxy:unix:r", path="r", is_unix=True, proxied=True, plain=True),
    ),
}


@pytest.mark.parametrize(("text", "address"), FORMS.values(), ids=FORMS)
def test_an_address_is(text: str, address: ListenAddress) -> None:
    assert listen_address(text, "--listen") == address


@pytest.mark.parametrize(
    "text", ["4000", "unix:", "fd:x", "fd:", "proxy:", "plain:4000", "host:port", "host:70000", "fd:2147483648", ""]
)
def test_what_is_no_address_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(Misuse, match=r"--listen: '.*' is not HOST:PORT, unix:PATH or fd:N, with plain: or proxy:"):
        listen_address(text, "--listen")


# ── Unix sockets ─────────────────────────────────────────────────────────────────────────────────


def test_only_a_socket_that_nobody_listens_on_any_more_is_replaced(tmp_path: Path) -> None:
    path, file = tmp_path / "s", tmp_path / "f"
    with unix_socket(str(path), "--listen") as left:
        left.listen()
    with unix_socket(str(path), "--listen") as taken:
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        taken.listen()
        with pytest.raises(Misuse, match="another program listens there"):
            unix_socket(str(path), "--listen")
    file.write_text("mine")
    with pytest.raises(Misuse, match="is there already and is no socket"):
        unix_socket(str(file), "--listen")
    assert file.read_text() == "mine"


async def test_a_server_listens_on_several_addresses_and_removes_its_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    options = ("--listen", "127.0.0.1:0", "--listen", "[::1]:0", "--listen", f"unix:{path}")
    async with serving(tmp_path / "data", options=options) as server:
        await server.logged("listening", url=f"unix:{path}")
        assert len([line for line in server.log if "ws://[::1]:" in line]) == 1
        alice, bob = wormhole(server.url), wormhole(server.url)
        async with alice, bob:
            await meet(alice, bob)
        local = RawSocket(*await asyncio.open_unix_connection(str(path)))
        local.write(handshake())
        async with bounded("an answer"):
            await local.reader.readuntil(b"\r\n\r\n")
        assert (await local.hear())["welcome"]["your-address"] == {"ipv4": "127.0.0.1", "port": 0}
        local.cut()
        await server.stop()
    assert not path.exists()


@on_uvloop
async def test_a_server_makes_and_removes_its_own_unix_socket_and_no_other_file(tmp_path: Path) -> None:
    path, taken, file = tmp_path / "s", tmp_path / "taken", tmp_path / "file"
    async with open_live(tmp_path / "data") as live:
        listeners = live.server.listeners
        for own in (path, taken):
            await listeners.listen(listen_address(f"unix:{own}", "--listen"))
        listeners.stop_accepting(0)
        await listeners.check_descriptors(0)
        local = RawSocket(*await asyncio.open_unix_connection(str(path)))  # it is there again after a shortage
        local.write(handshake())
        async with bounded("an answer"):
            assert b"101" in await local.reader.readuntil(b"\r\n\r\n")
        local.cut()
        taken.unlink()
        file.touch()
        with unix_socket(str(taken), "--listen"):
            with pytest.raises(Misuse, match="is no socket"):
                await listeners.listen(listen_address(f"unix:{file}", "--listen"))
            assert [is_there(name) for name in (path, taken, file)] == [False, True, True]


def is_there(path: Path) -> bool:
    return path.exists()


# ── inherited sockets ────────────────────────────────────────────────────────────────────────────


async def test_a_server_serves_on_a_unix_socket_that_it_was_started_with(tmp_path: Path) -> None:
    """As systemd starts it: the first socket is descriptor 3 (man 3 sd_listen_fds)."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        command = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3);"
            " os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()));"
            " os.execv(sys.executable, [sys.executable, '-m', 'restante', *sys.argv[2:]])"
        )
        options = f"serve --data {tmp_path / 'data'} --listen fd:3 --admin off --log-format json".split()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", command, str(listening.fileno()), *options),
            pass_fds=[listening.fileno()],
            stderr=subprocess.PIPE,
            env=environment(),
        )
        try:
            # A client may come before the server is there: the socket listens already.
            client = RawSocket(*await asyncio.open_unix_connection(str(path)))
            client.write(handshake())
            async with bounded("an answer"):
                assert b"101" in await client.reader.readuntil(b"\r\n\r\n")
            client.cut()
        finally:
            process.terminate()
            async with bounded("the end"):
                await process.communicate()
        assert process.returncode == 0
        assert is_there(path), "who made the socket removes it"


NO_PROXY = "'proxy:127.0.0.1:0' needs a proxy that may name clients: name its network with --trust-proxy"


@pytest.mark.parametrize(
    ("command", "address", "message"),
    [
        ("serve", "fd:999", "fd:999 is no socket: Bad file descriptor"),
        ("serve", "fd:0", "fd:0 is no socket: Socket operation on non-socket"),
        ("serve", "proxy:127.0.0.1:0", NO_PROXY),
        ("waku serve", "proxy:127.0.0.1:0", NO_PROXY),
    ],
)
def test_what_could_serve_nobody_is_refused(tmp_path: Path, command: str, address: str, message: str) -> None:
    ended = called(*command.split(), "--data", tmp_path / "data", "--admin", "off", "--listen", address)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert not (tmp_path / "data").exists()


def test_a_setting_with_a_nul_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "restante.toml"
    for line in (
        'listen = "unix:a\\u0000b"',
        'tls_cert = "a\\u0000b"\ntls_key = "k"',
        'listen = ["127.0.0.1:0", "unix:a\\u0000b"]',
    ):
        file.write_text(f"[serve]\n{line}\n")
        ended = called("serve", "--data", tmp_path / "data", "--admin", "off", "--config", file)
        assert ended.returncode == 2
        assert ended.stderr.startswith(f"restante: {file}: {line.partition(' ')[0]}: ")
        assert ended.stderr.endswith("has a NUL, which no path and no address may have\n")


def test_the_guide_explains_each_message_of_an_address_or_a_certificate_that_cannot_be_used(tmp_path: Path) -> None:
    table = GUIDE.text.partition("## When something is wrong")[2].partition("The server stops, or hangs:")[0]
    rows = re.findall(r"^\| (.+?) \| .+ \|$", table, re.MULTILINE)
    known = [re.escape(each).replace("…", ".+") for row in rows for each in re.findall(r"`([^`]+)`", row)]
    (tmp_path / "file").touch()
    (tmp_path / "taken").mkdir()
    with unix_socket(str(tmp_path / "taken" / "s"), "--listen") as taken:
        taken.listen()
        cases = (
            ("--listen", f"unix:{tmp_path}/file"),
            ("--listen", f"unix:{tmp_path}/taken/s"),
            ("--listen", f"unix:{tmp_path}/missing/s"),
            ("--listen", "fd:999"),
            ("--tls-cert", f"{tmp_path}/missing", "--tls-key", f"{tmp_path}/missing"),
        )
        for number, words in enumerate(cases):
            ended = called("serve", "--data", tmp_path / f"data-{number}", "--admin", "off", *words)
            assert ended.returncode == 2, ended.stderr
            assert [each for each in known if re.search(each, ended.stderr)], ended.stderr
