"""Documentation runs: the commands it shows are executed, and what it lists is complete."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import typer.main
from wormhole_mailbox_server.database import create_channel_db, create_usage_db

from restante.cli.main import app
from restante.mailbox.store.schema import connect
from support.bounds import PATIENCE
from support.certificates import Certificate
from support.document_shell import Shell, shell
from support.documents import DOCUMENTS, ROOT, Document, files_of_the_project
from support.mailbox.conversation import read_scripts
from support.mailbox.raw_socket import RawSocket
from support.mailbox.wormhole import HOMES, Client
from support.ports import held_port
from support.processes import called, run
from support.proxy_headers import header
from support.sqlite import alter, select
from support.waku.archives import ROWS, archive_of, raws_of
from test_serve import welcome, welcomed


def test_every_named_block_is_executed_by_a_test_that_names_it_and_its_document() -> None:
    tests = [file.read_text() for file in (ROOT / "tests").rglob("*.py")]
    for document in DOCUMENTS:
        path = str(document.relative_to(ROOT))
        beside = "".join(text for text in tests if f'"{path}"' in text)
        for name in Document(path).blocks:
            assert f'"{name}"' in beside, f"no test executes {name} of {path}"
    # The pipeline's are executed in tests/pipeline/test_commands.py and test_demo.py, those of its guide.
    readme, guide = Document("README.md"), Document("docs/pipeline/first-lake.md")
    assert readme.commands("pipeline", "run") == guide.commands("first lake", "run --source", "sql")[:1]
    assert readme.lines("demo") == guide.lines("demo")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder whose `run` has set itself up: all that is left is to start the program."""
    script = tmp_path / "run"
    script.write_text('#!/bin/sh\n[ $# -gt 0 ] || set -- serve\nexec restante "$@"\n')
    script.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_transfer_of_the_readme(checkout: Path, fresh: bool) -> None:
    """In a fresh clone the script sets itself up first."""
    for name in files_of_the_project() if fresh else ():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name)
    readme = Document("README.md")
    [serve], [send], [receive] = map(readme.lines, ("serve", "send", "receive"))
    with shell(checkout) as here, here.serving(serve):
        assert transfer(here, send, receive)[0] == "held until called for\n"


def test_the_relay_of_the_readme(checkout: Path) -> None:
    [serve] = Document("README.md").lines("relay serve")
    with (
        shell(checkout, 4001) as here,
        here.serving(serve),
        socket.create_connection(("127.0.0.1", here.port), PATIENCE) as client,
    ):
        client.sendall(b"hello\n")
        assert client.recv(100) == b"bad handshake\n"


def test_the_waku_node_of_the_readme(checkout: Path) -> None:
    readme = Document("README.md")
    [serve] = readme.lines("waku serve")
    post, request, check = readme.commands("waku", "waku post", "waku request", "waku check")
    with shell(checkout, 30303) as here:
        with here.running(serve) as node:
            enode = here.match(node, r"(enode://\S+)")
            here.run(post.replace("enode://…", enode))
            assert here.run(request.replace("enode://…", enode)).endswith("Z held until called for\n")
        assert node.wait(PATIENCE) == 0
        assert here.run(check).startswith("1 envelope, ")


def test_the_five_commands_of_the_guide(checkout: Path) -> None:
    guide = Document("docs/waku/guide.md")
    [serve], [request], [live] = map(guide.lines, ("serve", "request", "live"))
    probe, post = guide.commands("post", "waku probe", "waku post")
    with shell(checkout, 30303) as here, here.serving(serve):
        assert here.run(probe).startswith("all is well")
        here.run(post)
        assert here.run(request).endswith("Z held until called for\n")
        with here.running(live) as following:
            assert following.stdout is not None
            here.run(post)
            assert following.stdout.readline().endswith("Z held until called for\n")
        assert following.wait(PATIENCE) == 0


def test_the_commands_of_the_operations_guide(tmp_path: Path) -> None:
    guide, moving = Document("docs/mailbox/operating.md"), Document("docs/mailbox/from-reference.md")
    serve, *commands = guide.commands("serve", "serve", "status.*post$", "--json", "config show")
    commands += [line for name in ("backup", "daily", "results") for line in guide.lines(name)]
    commands += [line for name in ("import", "export") for line in moving.lines(name)]
    (tmp_path / "backups").mkdir()
    create_channel_db(str(tmp_path / "relay.sqlite")).close()  # the reference server was here
    create_usage_db(str(tmp_path / "usage.sqlite")).close()
    with shell(tmp_path) as here, here.serving(serve):
        for command in commands:
            here.run(command)
    assert stat.S_IMODE((tmp_path / "post-copy.sqlite").stat().st_mode) == 0o600
    with shell(tmp_path) as here:
        for command in guide.lines("restore"):
            here.run(command)
        assert [file.name for file in (tmp_path / "post").glob("restante.sqlite*")] == ["restante.sqlite"]
        assert "not running" in here.run("restante status --data post")
        assert len(list((tmp_path / "backups").iterdir())) == 1
    assert (tmp_path / "new-post" / "restante.sqlite").exists()
    assert (tmp_path / "usage-copy.sqlite").exists()


def test_the_line_of_the_crontab(tmp_path: Path) -> None:
    """The command is executed as cron does it (crontab(5)): by /bin/sh, with few variables, in the home directory."""
    [line] = Document("docs/mailbox/operating.md").lines("crontab")
    *times, command = line.split(maxsplit=5)
    assert times == ["*/5", "*", "*", "*", "*"]
    command, *stdin = re.split(r"(?<!\\)%", command)
    assert stdin == [], "what follows a bare % is the input of the command"
    command = command.replace("\\%", "%").replace("/opt/restante/bin/restante", f"{sys.executable} -m restante")
    command = command.replace("/var/lib", str(tmp_path))
    backups, data = tmp_path / "restante-standby" / "backups", tmp_path / "restante"
    backups.mkdir(parents=True)
    data.mkdir()
    connect(str(data / "restante.sqlite")).close()
    for name, minutes in (("old", 61), ("new", 59)):
        (backups / f"{name}.sqlite").touch()
        os.utime(backups / f"{name}.sqlite", (time.time() - minutes * 60,) * 2)
    cron = ("env", "-i", f"HOME={tmp_path}", "LOGNAME=root", "SHELL=/bin/sh", "PATH=/usr/bin:/bin", "/bin/sh", "-c")
    done = run(*cron, command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = {file.name for file in backups.iterdir()} - {"new.sqlite"}
    assert len(made) == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d{6}\.sqlite", made.pop())


def test_an_upgrade_and_the_way_back(tmp_path: Path) -> None:
    guide = Document("docs/mailbox/operating.md")
    serve, *_ = guide.commands("serve", "serve", "status.*post$", "--json", "config show")
    with shell(tmp_path) as here:
        with here.serving(serve) as server:
            [backup] = guide.lines("upgrade")
            here.run(backup)
        assert server.wait(PATIENCE) == 0
        [(version,)] = select(file := tmp_path / "post" / "restante.sqlite", "PRAGMA user_version")
        alter(file, f"PRAGMA user_version = {version + 1}")  # as a newer version does
        with here.running(serve) as server:
            assert here.match(server, rf"(has schema {version + 1}, this program knows up to {version}:)")
            assert server.wait(PATIENCE) == 1
        for command in guide.lines("go back"):
            here.run(command)
        with here.serving(serve) as server:
            assert server.poll() is None


async def test_the_server_with_tls_and_the_one_behind_a_proxy_of_tcp(tmp_path: Path) -> None:
    guide = Document("docs/mailbox/network.md")
    certificate = Certificate(tmp_path)
    for name in ("fullchain.pem", "privkey.pem"):
        (tmp_path / name).symlink_to(certificate.path)
    [command] = guide.lines("tls")
    assert "'*:4000'" in command
    with shell(tmp_path) as here, here.serving(command.replace("'*:4000'", "127.0.0.1:4000")):
        client = RawSocket(*await asyncio.open_connection("127.0.0.1", here.port, ssl=certificate.client))
        assert (await welcomed(client))["your-address"]["ipv4"] == "127.0.0.1"
    [command] = guide.lines("proxy headers")
    with shell(tmp_path) as here, here.serving(command):
        assert (await welcome(here.port, header("203.0.113.7")))["your-address"]["ipv4"] == "203.0.113.7"


def test_the_commands_of_the_address_book(tmp_path: Path) -> None:
    guide = Document("examples/address-book/README.md")
    [serve] = guide.lines("serve")
    both = ["Carol: carol@example.com", "Dave: dave@example.com"]
    with shell(tmp_path) as here, here.serving(serve):
        (tmp_path / "address_book.py").write_text(here.here((guide.path.parent / "address_book.py").read_text()))
        for command in (*guide.lines("invite"), *guide.lines("accept")):
            here.run(command)
        *_, last, alice, bob = (here.run(command) for command in guide.lines("exchange"))
    assert last == "entries that the friend does not have yet: 0\n"
    assert [line.removesuffix(" (friend)") for line in alice.splitlines()] == both
    assert [line.removesuffix(" (friend)") for line in bob.splitlines()] == both[::-1]


def test_the_commands_of_the_waku_guide(tmp_path: Path) -> None:
    guide = Document("docs/waku/operating.md")
    [serve, config], [post] = guide.commands("serve", "waku serve", "waku config"), guide.lines("post")
    others = ("vacuum", "check", "backup", "restore", "export")
    commands = [config, *(line for name in others for line in guide.lines(name))]
    (tmp_path / "away").mkdir()
    (tmp_path / "serving").mkdir()
    with shell(tmp_path / "serving", 30303) as serving:
        with serving.running(serve) as node:
            (serving.folder / "enode.txt").write_text(serving.match(node, r"(enode://\S+)") + "\n")
            assert len(serving.run(post).strip()) == 64
        assert node.wait(PATIENCE) == 0
    archive_of(tmp_path / "waku")  # a Mailserver ran here
    with shell(tmp_path) as here:
        for command in commands:
            here.run(command)
    for folder in ("waku-copy", "another"):
        assert sorted(raws_of(tmp_path / folder)) == sorted(row.raw for row in ROWS), folder


COMMAND_GUIDES: Final = {
    "relay": ["docs/relay/operating.md"],
    "waku": ["docs/waku/operating.md", "docs/waku/guide.md", "docs/waku/history.md", "docs/waku/library.md"],
    "pipeline": [f"docs/pipeline/{page}.md" for page in ("operating", "first-lake", "reading")],
    "migrate": ["docs/mailbox/standby.md"],
    "extract": ["docs/pipeline/operating.md"],
    "timing": ["docs/timing/guide.md"],
    "send": ["docs/client/guide.md"],
    "receive": ["docs/client/guide.md"],
    "health": ["docs/monitoring.md"],
    "completion": ["docs/install.md"],
    "man": ["docs/install.md"],
}
"""Where the flags of commands are described; those of all others are in two pages of the mailbox server."""


def test_the_guides_name_every_flag_of_every_command() -> None:
    missing = []
    for name, outer in typer.main.get_group(app).commands.items():
        pages = COMMAND_GUIDES.get(name, ["docs/mailbox/operating.md", "docs/mailbox/from-reference.md"])
        guides = "".join((ROOT / page).read_text() for page in pages)
        for command in (outer, *getattr(outer, "commands", {}).values()):
            flags = [flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")]
            missing += [f"{name} {command.name} {flag}" for flag in flags if flag not in guides]
    assert not missing


def test_the_protocol_notes_list_every_difference_and_error_that_the_tests_know() -> None:
    notes = (ROOT / "docs/mailbox/protocol.md").read_text()
    table = notes.partition("## Where the reference differs")[2]
    rows = {line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| here")}
    assert rows == {f"| {s.title} | {s.reference_differs} |" for s in read_scripts() if s.reference_differs}
    errors = re.findall(r"`([^`]+)`", notes.partition("## Errors")[2].partition("\n## ")[0])
    listed = re.compile("|".join(re.sub(r"<type>|<key>", r"\\w+", error) for error in errors))
    for line in (line.text for script in read_scripts() for line in script.lines):
        assert all(map(listed.fullmatch, re.findall(r'\berror="?((?<=")[^"]+|\w+)', line))), line


LINK: Final = re.compile(r"\]\(\s*([^)\s]+)\s*\)|<(https?://[^>\s]+)>|\b(?:src|href)=\"([^\"]+)\"")


def prose(document: Path) -> str:
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", lambda code: re.sub(r"[\[\]<>()]", "", code[0]), text)


@functools.cache
def anchors(document: Path) -> set[str]:
    counts: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.+?) *$", prose(document), re.MULTILINE):
        text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        counts[anchor] = counts.get(anchor, -1) + 1
        if counts[anchor]:
            counts[f"{anchor}-{counts[anchor]}"] = 0
    return set(counts)


def test_links_lead_to_a_file_of_the_project_and_to_a_heading_in_it() -> None:
    files = [ROOT / name for name in files_of_the_project()]
    existing = {*files, *(folder for file in files for folder in file.parents)}
    for document in DOCUMENTS:
        for target in map("".join, LINK.findall(prose(document))):
            if target.startswith(("http:", "https:")):
                continue
            path, _, anchor = target.partition("#")
            file = Path(os.path.normpath(document.parent / path)) if path else document
            assert file in existing, f"{document}: {target}"
            assert not anchor or anchor in anchors(file), f"{document}: {target}"


GUIDE = Document("docs/mailbox/first-server.md")
TEXT: Final = "held until called for\n"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Shell]:
    """A shell in which nothing of the user's is read or written."""
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / "wormhole"
    line = "from support.mailbox.wormhole import main; main()"  # it listens on a port that is free on all addresses
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{line}' \"$@\"\n")
    program.chmod(0o755)
    with shell(tmp_path) as opened:
        opened.environment |= dict.fromkeys(HOMES, str(tmp_path))
        opened.environment["PATH"] = f"{folder}:{opened.environment['PATH']}"
        yield opened


def transfer(here: Shell, send: str, receive: str) -> tuple[str, str]:
    """Send and receive; return what the receiver has printed, and the sender after the code."""
    with here.running(send) as sender:
        code = here.match(sender, r"code is: (\S+)")
        assert "7-your-code" in receive
        received = here.run(receive.replace("7-your-code", code))
        assert sender.stdout is not None
        rest = sender.stdout.read()
        assert sender.wait(PATIENCE) == 0, rest
    return received, rest


@pytest.fixture
def relay_port(here: Shell) -> Iterator[int]:
    """A port for the relay instead of 4001. The file with the settings says where the servers listen."""
    with held_port() as port:
        for name in ("RESTANTE_LISTEN", "RESTANTE_RELAY_LISTEN"):
            del here.environment[name]
        yield port


def test_a_file_is_sent_from_one_folder_to_another(here: Shell, relay_port: int) -> None:
    [serve], [relay], (folders, letter, send), [receive] = map(GUIDE.lines, ("serve", "relay", "send", "receive"))
    send, receive, file = (
        here.here(text).replace("127.0.0.1:4001", f"127.0.0.1:{relay_port}")
        for text in (send, receive, GUIDE.blocks["settings"])
    )
    (here.folder / "restante.toml").write_text(file)
    with held_port() as admin, held_port() as relay_admin:
        here.environment["RESTANTE_ADMIN"] = f"127.0.0.1:{admin}"
        here.environment["RESTANTE_RELAY_ADMIN"] = f"127.0.0.1:{relay_admin}"
        with here.serving(serve), here.serving(relay):
            for command in (folders, letter):
                here.run(command)
            change, send = send.split(" && ")
            _, printed = transfer(here, f"sh -c '{change} && exec {send}'", receive)
            assert f"relay:tcp:127.0.0.1:{relay_port}" in printed
            assert "Transfer complete" in printed
            health, relay_health, status, relay_status = GUIDE.lines("check")
            assert here.run(health) == here.run(relay_health.replace(":4012", f":{relay_admin}")) == "ok\n"
            assert re.search(r"mailboxes +0\n", here.run(status))
            assert here.run(relay_status).startswith("relay         running\n")
    assert (here.folder / "bob" / "letter.txt").read_text() == TEXT


def test_the_team_uses_tls_and_a_relay_of_its_own(here: Shell, relay_port: int) -> None:
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
    relay = f"restante relay serve --data relayed --listen 127.0.0.1:{relay_port}"
    here.environment |= {"STATE_DIRECTORY": "data", "CREDENTIALS_DIRECTORY": str(here.folder)}
    here.environment |= service_settings(here.folder)
    [send], [receive] = (GUIDE.lines(name) for name in ("team sends", "team receives"))
    with here.serving(start), here.serving(relay):
        profile = GUIDE.blocks["profile"].replace("relay.example.org:4001", f"127.0.0.1:{relay_port}")
        profile = profile.replace("relay.example.org", f"127.0.0.1:{here.port}")
        settings = dict(re.findall(r"^export (\w+)=(\S+)$", profile, re.MULTILINE))
        assert settings["WORMHOLE_RELAY_URL"] == f"wss://127.0.0.1:{here.port}/v1"
        here.environment |= {**settings, "SSL_CERT_FILE": str(certificate.path)}
        # Neither listens: the relay is the only way.
        send, receive = send.replace("send", "send --no-listen"), f"{receive} --no-listen --accept-file"
        _, printed = transfer(here, f"sh -c 'cd alice && exec {send}'", f"cd bob && {receive}")
    assert f"relay:tcp:127.0.0.1:{relay_port}" in printed
    assert (here.folder / "bob" / "letter.txt").read_text() == TEXT


def service_settings(folder: Path) -> dict[str, str]:
    """Write the file of both services, and return the variable that names it."""
    [(name, path)] = re.findall(r"^Environment=(\w+)=(\S+)$", GUIDE.blocks["config"], re.MULTILINE)
    assert f"into `{path}`" in GUIDE.text
    file = folder / Path(path).name
    file.write_text(GUIDE.blocks["service settings"])
    return {name: str(file)}


def test_the_services_read_one_file(tmp_path: Path) -> None:
    variables = service_settings(tmp_path)
    shown = called("config", "show", **variables).stdout + called("relay", "config", **variables).stdout
    for setting in (
        r"trust_proxy += \[\"127\.0\.0\.0/8\"\]",
        r"keep_usage += 90\.0",
        r"month_bytes += 5000000000000",
    ):
        assert re.search(rf"^{setting} +# .*restante\.toml$", shown, re.MULTILINE), shown


def test_the_client_s_file_names_the_server_and_the_relay_that_the_profile_names(tmp_path: Path) -> None:
    (tmp_path / "restante").mkdir()
    (tmp_path / "restante" / "client.toml").write_text(GUIDE.blocks["client settings"])
    shown = called("client", "config", XDG_CONFIG_HOME=str(tmp_path)).stdout
    for line in GUIDE.lines("profile"):
        assert line.partition("=")[2] in shown, shown


def messages() -> list[str]:
    table = GUIDE.text.partition("## When it does not work")[2].partition("| what happens |")[0]
    return re.findall(r"^\| `([^`]+)` \| .+ \|$", table, re.MULTILINE)


async def said_of(here: Shell, url: str) -> str:
    done = await (await Client.start(here.folder, url, "send", "--text", "x")).leaves()
    assert done.exit_code == 1, done
    assert "We had a problem connecting to the relay server" in done.stderr
    [message] = [text for text in messages() if text in done.stderr]
    return message


@pytest.mark.thorough
async def test_what_the_client_says_if_the_url_or_the_server_is_wrong(here: Shell) -> None:
    async def bad_gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    there = f"127.0.0.1:{here.port}"
    assert await said_of(here, f"ws://{there}/v1") == "Connection was refused"
    async with await asyncio.start_server(bad_gateway, "127.0.0.1", here.port):
        assert await said_of(here, f"ws://{there}/v1") == "upgrade failed [502]"
    certificate = Certificate(here.folder)
    serve = "restante serve --data data --listen 127.0.0.1:4000"
    with here.serving(f"{serve} --tls-cert {certificate.path} --tls-key {certificate.path}"):
        assert await said_of(here, f"ws://{there}/v1") == "upgrade failed [400]"
        assert await said_of(here, f"wss://{there}/v1") == "certificate verify failed"
    with here.serving(serve):
        assert await said_of(here, f"ws://{there}/") == "upgrade failed [200]"
        assert await said_of(here, f"wss://{there}/v1") == "wrong version number"
    assert len(messages()) == 6
