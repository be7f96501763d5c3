"""Where the servers listen: the forms of an address, Unix sockets, inherited sockets, and several at a time."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from client.live import meet, wormhole
from restante.common.errors import Misuse
from restante.common.listening import ListenAddress, listen_address, unix_socket
from support.bounds import bounded
from support.documents import Document
from support.loops import on_uvloop
from support.mailbox.live import open_live
from support.mailbox.raw_socket import RawSocket, handshake
from support.processes import called, serving

GUIDE = Document("docs/mailbox/operating.md")

LOCAL = {"is_unix": True, "plain": True}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:4000", {"host": "127.0.0.1", "port": 4000}),
        ("[::1]:4000", {"host": "::1", "port": 4000}),
        ("*:4000", {"port": 4000}),  # every interface
        ("unix:/run/r", {"path": "/run/r", **LOCAL}),
        ("fd:999", {"descriptor": 999}),
        ("proxy:*:1", {"port": 1, "proxied": True}),
        ("plain:*:1", {"port": 1, "plain": True}),
        ("proxy:plain:[::1]:1", {"host": "::1", "port": 1, "proxied": True, "plain": True}),
        ("proxy:unix:r", {"path": "r", "proxied": True, **LOCAL}),
    ],
)
def test_an_address_is(text: str, parts: dict[str, Any]) -> None:
    assert listen_address(text, "--listen") == ListenAddress(text, **parts)


def test_what_is_no_address_is_refused_with_the_forms() -> None:
    for text in (
        *("4000", ":4000", "unix:", "fd:x", "fd:", "fd:2147483648", "proxy:", "plain:4000", ""),
        *("host:", "host:port", "host:70000", "host:-1", "host:٣"),
    ):
        with pytest.raises(
            Misuse, match=r"--listen: '.*' is not HOST:PORT, unix:PATH or fd:N, with plain: or proxy:"
        ):
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


async def your_address(path: Path) -> dict[str, Any]:
    """Connect to a Unix socket, and return the address of the welcome."""
    local = RawSocket(*await asyncio.open_unix_connection(str(path)))
    local.write(handshake())
    async with bounded("an answer"):
        await local.reader.readuntil(b"\r\n\r\n")
    address: dict[str, Any] = (await local.hear())["welcome"]["your-address"]
    local.cut()
    return address


async def test_a_server_listens_on_several_addresses_and_removes_its_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
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
    path, taken, file = tmp_path / "s", tmp_path / "taken", tmp_path / "file"
    async with open_live(tmp_path / "data") as live:
        listeners = live.server.listeners
        for own in (path, taken):
            await listeners.listen(listen_address(f"unix:{own}", "--listen"))
        listeners.stop_accepting(0)
        await listeners.check_descriptors(0)
        assert await your_address(path), "it is there again after a shortage"
        taken.unlink()
        file.touch()
        with unix_socket(str(taken), "--listen"):
            with pytest.raises(Misuse, match="is no socket"):
                await listeners.listen(listen_address(f"unix:{file}", "--listen"))
            names = {name for name in os.listdir(tmp_path) if name != "data"}  # noqa: PTH208 - ASYNC240
            assert names == {"taken", "file"}


# ── what cannot be used ──────────────────────────────────────────────────────────────────────────


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


def test_what_could_serve_nobody_is_refused_and_the_guide_explains_the_message(tmp_path: Path) -> None:
    table = GUIDE.text.partition("## When something is wrong")[2].partition("The server stops, or hangs:")[0]
    rows = re.findall(r"^\| (.+?) \| .+ \|$", table, re.MULTILINE)
    explained = [re.escape(text).replace("…", ".+") for row in rows for text in re.findall(r"`([^`]+)`", row)]
    (tmp_path / "file").touch()
    no_proxy = "'proxy:127.0.0.1:0' needs a proxy that may name clients: name its network with --trust-proxy"
    with unix_socket(str(tmp_path / "s"), "--listen") as taken:
        taken.listen()
        cases = (
            ("serve --listen fd:999", "fd:999 is no socket: Bad file descriptor"),
            ("serve --listen fd:0", "fd:0 is no socket: Socket operation on non-socket"),
            ("serve --listen proxy:127.0.0.1:0", no_proxy),
            ("waku serve --listen proxy:127.0.0.1:0", no_proxy),
            (f"serve --tls-cert {tmp_path}/missing --tls-key {tmp_path}/missing", "No such file or directory"),
            (f"serve --listen unix:{tmp_path}/file", "is there already and is no socket"),
            (f"serve --listen unix:{tmp_path}/s", "another program listens there"),
            (f"serve --listen unix:{tmp_path}/missing/s", "No such file or directory"),
        )
        for number, (words, message) in enumerate(cases):
            data = tmp_path / f"data-{number}"
            ended = called(*words.split(), "--data", data, "--admin", "off")
            assert (ended.returncode, message in ended.stderr) == (2, True), ended.stderr
            assert message == no_proxy or any(re.search(text, ended.stderr) for text in explained), ended.stderr
            assert "unix:" in words or not data.exists()
