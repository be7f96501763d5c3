"""The guide to a first mailbox server: its commands are executed with the real `wormhole`."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from support.bounds import PATIENCE
from support.certificates import Certificate
from support.document_shell import Shell, shell
from support.documents import Document
from support.mailbox.wormhole import HANDSHAKE_SECONDS, HOMES, Client
from support.ports import held_port
from support.processes import called

GUIDE = Document("docs/mailbox/first-server.md")
TEXT: Final = "held until called for\n"

PROGRAM: Final = "#!/bin/sh\nexec {python} -c 'from support.mailbox.wormhole import main; main()' \"$@\"\n"
"""A `wormhole` that listens on a port that is free on all addresses."""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Shell]:
    """A shell in which nothing of the user's is read or written."""
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / "wormhole"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    with shell(tmp_path) as found:
        found.environment |= dict.fromkeys(HOMES, str(tmp_path))
        found.environment["PATH"] = f"{folder}:{found.environment['PATH']}"
        yield found


def transfer(here: Shell, send: str, receive: str) -> str:
    """Send and receive; return what the sender has printed after the code."""
    with here.running(send) as sender:
        code = here.match(sender, r"code is: (\S+)")
        assert "7-your-code" in receive
        here.run(receive.replace("7-your-code", code))
        assert sender.stdout is not None
        rest = sender.stdout.read()
        assert sender.wait(PATIENCE) == 0, rest
    return rest


def test_a_file_is_sent_from_one_folder_to_another(here: Shell) -> None:
    [serve], (folders, letter, send), [receive] = (GUIDE.lines(each) for each in ("serve", "send", "receive"))
    with held_port() as admin:
        here.environment["RESTANTE_ADMIN"] = f"127.0.0.1:{admin}"
        with here.running(serve) as server:
            here.wait_for_port(server)
            for command in (folders, letter):
                here.run(command)
            change, send = send.split(" && ")
            assert "Transfer complete" in transfer(here, f"sh -c '{change} && exec {send}'", receive)
            health, status = GUIDE.lines("check")
            assert here.run(health) == "ok\n"
            assert re.search(r"mailboxes +0\n", here.run(status))
    assert (here.folder / "bob" / "letter.txt").read_text() == TEXT


def test_the_team_uses_tls_and_a_relay_of_its_own(here: Shell) -> None:
    for name in ("alice", "bob"):
        (here.folder / name).mkdir()
    certificate = Certificate(here.folder)
    for name in ("fullchain.pem", "privkey.pem"):
        (here.folder / name).symlink_to(certificate.path)
    (here.folder / "alice" / "letter.txt").write_text(TEXT)
    unit = GUIDE.blocks["certificate"]
    *_, start = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    passed = dict(re.findall(r"^LoadCredential=(\S+):(\S+)$", unit, re.MULTILINE))
    assert {name: Path(file).name for name, file in passed.items()} == {name: name for name in passed}
    start = start.replace("/opt/restante/bin/", "").replace("*:4000", "127.0.0.1:4000")
    here.environment |= {"STATE_DIRECTORY": "data", "CREDENTIALS_DIRECTORY": str(here.folder)}
    [relay], [send], [receive] = (GUIDE.lines(each) for each in ("relay", "team sends", "team receives"))
    with held_port() as port, here.running(start) as server:
        assert relay.endswith("tcp:4001")
        with here.running(relay.replace("tcp:4001", f"tcp:{port}:interface=127.0.0.1")) as relaying:
            here.wait_for_port(server)
            here.wait_for_port(relaying, port)
            profile = GUIDE.blocks["profile"] + GUIDE.blocks["relay profile"]
            profile = profile.replace("relay.example.org:4001", f"127.0.0.1:{port}")
            profile = profile.replace("relay.example.org", f"127.0.0.1:{here.port}")
            settings = dict(re.findall(r"^export (\w+)=(\S+)$", profile, re.MULTILINE))
            assert settings["WORMHOLE_RELAY_URL"] == f"wss://127.0.0.1:{here.port}/v1"
            here.environment |= {**settings, "SSL_CERT_FILE": str(certificate.path)}
            # Neither listens: the relay is the only way.
            send, receive = send.replace("send", "send --no-listen"), f"{receive} --no-listen --accept-file"
            printed = transfer(here, f"sh -c 'cd alice && exec {send}'", f"cd bob && {receive}")
    assert f"relay:tcp:127.0.0.1:{port}" in printed
    assert (here.folder / "bob" / "letter.txt").read_text() == TEXT


def test_the_caddyfile_is_that_of_the_operations_guide_and_the_drop_in_sets_what_the_flag_sets() -> None:
    """Caddy reads it in tests/interop/test_reverse_proxies.py and test_clients.py."""
    assert GUIDE.blocks["caddy"] == Document("docs/mailbox/operating.md").blocks["caddy"]
    [(name, value)] = re.findall(r"^Environment=(\w+)=(\S+)$", GUIDE.blocks["proxy"], re.MULTILINE)
    shown = called("config", "show", **{name: value})
    assert re.search(r"trust.proxy.*127\.0\.0\.0/8.*RESTANTE_TRUST_PROXY", shown.stdout), shown.stdout


# ── what the client says when something is wrong ─────────────────────────────────────────────────


def messages() -> list[str]:
    """Return what the client says, by the first table of errors."""
    table = GUIDE.text.partition("## When it does not work")[2].partition("| what happens |")[0]
    return re.findall(r"^\| `([^`]+)` \| .+ \|$", table, re.MULTILINE)


@asynccontextmanager
async def bad_gateway(port: int) -> AsyncIterator[None]:
    """Answer as a proxy whose server does not run."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield


async def said_of(here: Shell, url: str, **variables: str) -> str:
    """Return what `wormhole` says if it is told this URL."""
    done = await (await Client.start(here.folder, url, "send", "--text", "x", **variables)).leaves()
    assert done.exit_code == 1, done
    assert "We had a problem connecting to the relay server" in done.stderr
    [message] = [text for text in messages() if text in done.stderr]
    return message


@pytest.mark.thorough
async def test_what_the_client_says_if_the_url_or_the_server_is_wrong(here: Shell) -> None:
    there = f"127.0.0.1:{here.port}"
    assert await said_of(here, f"ws://{there}/v1") == "Connection was refused"
    async with bad_gateway(here.port):
        assert await said_of(here, f"ws://{there}/v1") == "upgrade failed [502]"
    certificate = Certificate(here.folder)
    serve = "restante serve --data data --listen 127.0.0.1:4000"
    with here.running(f"{serve} --tls-cert {certificate.path} --tls-key {certificate.path}") as server:
        await asyncio.to_thread(here.wait_for_port, server)
        assert await said_of(here, f"ws://{there}/v1") == "upgrade failed [400]"
        assert await said_of(here, f"wss://{there}/v1") == "certificate verify failed"
    with here.running(f"{serve}") as server:
        await asyncio.to_thread(here.wait_for_port, server)
        assert await said_of(here, f"ws://{there}/") == "upgrade failed [200]"
        assert await said_of(here, f"wss://{there}/v1", **{HANDSHAKE_SECONDS: "1"}) == "opening handshake timeout"
    assert len(messages()) == 6
