"""The units of `deploy/systemd`: systemd knows every line, they allow little, and their commands work."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

from restante.cli.main import application
from restante.mailbox.store.schema import connect
from support.bounds import PATIENCE
from support.documents import ROOT, Document
from support.mailbox.raw_socket import RawSocket, handshake
from support.processes import called, environment, run

UNITS: Final = ROOT / "deploy" / "systemd"
SERVICES: Final = sorted(each.name for each in UNITS.glob("*.service"))
SERVERS: Final = ("restante.service", "restante-waku.service")
PROGRAM: Final = "/opt/restante/bin/restante"

MAX_EXPOSURE: Final = 2.0
"""What `systemd-analyze security` may say of a unit: 0 to 10. Access to the network alone is 0.9."""

GUIDE = Document("docs/mailbox/operating.md")


def systemd_analyze(*words: str | Path) -> str:
    """Run systemd-analyze, and return all that it says."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is missing (Debian: apt install systemd)")
    said = run(program, *words)
    assert said.returncode == 0, said.stdout + said.stderr
    return said.stdout + said.stderr


def settings(unit: str) -> dict[str, list[str]]:
    """Return the values of each setting of a unit."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / unit).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", SERVICES)
def test_a_service_may_do_little(unit: str) -> None:
    said = systemd_analyze("security", "--offline=true", UNITS / unit)
    exposure = re.search(rf"Overall exposure level for {unit}: (\d+\.\d+)", said)
    assert exposure is not None, said
    assert float(exposure[1]) <= MAX_EXPOSURE, said
    if unit == "restante.service":
        assert f"calls its exposure {exposure[1]}" in GUIDE.text


def test_systemd_knows_every_line_also_of_the_socket_in_the_guide(tmp_path: Path) -> None:
    texts = {unit.name: unit.read_text() for unit in UNITS.iterdir()}
    texts |= {"restante.socket": GUIDE.blocks["socket"]}
    texts |= {"restante.service.d/override.conf": GUIDE.blocks["socket service"]}
    (tmp_path / "restante.service.d").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text.replace(PROGRAM, "/bin/true"))
    units = [path for path in sorted(tmp_path.iterdir()) if path.is_file()]
    assert systemd_analyze("verify", "--man=no", *units) == ""


@pytest.mark.parametrize("unit", SERVERS)
def test_a_server_is_started_again_whatever_happens_but_not_while_it_loads(unit: str) -> None:
    found = settings(unit)
    expected = {"Type": "notify", "Restart": "always", "StartLimitIntervalSec": "0", "TimeoutStartSec": "infinity"}
    assert {name: found[name] for name in expected} == {name: [value] for name, value in expected.items()}
    assert found["WatchdogSec"] == ["30"]
    assert int(found["TimeoutStopSec"][0]) > 5, "it drains for up to 5 s"


@pytest.mark.parametrize("unit", SERVICES)
def test_the_command_of_a_service_has_only_flags_that_exist_and_directories_that_systemd_makes(unit: str) -> None:
    found = settings(unit)
    commands = [line for line in found["ExecStart"] if PROGRAM in line]
    assert commands
    made = {f"/var/lib/{name}" for name in found["StateDirectory"][0].split()}
    named = {"/".join(path.split("/")[:4]) for path in re.findall(r"/var/lib/[\w/-]+", str(found["ExecStart"]))}
    assert named <= made
    if unit in SERVERS:
        assert "--data ${STATE_DIRECTORY} " in commands[0]
        [listen] = re.findall(r"--listen (\S+)", commands[0])
        shown = ("config", "show") if unit == "restante.service" else ("waku", "config")
        assert called(*shown, "--listen", listen).returncode == 0
    for line in commands:
        text = re.sub(r"^/bin/sh -c '(?:exec )?(.*)'$", r"\1", line)
        words = shlex.split(text.replace("${STATE_DIRECTORY}", "/data"))
        assert words.pop(0) == PROGRAM
        command: Any = typer.main.get_group(application())
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context("restante", words).close()


def test_the_unit_of_backups_makes_one_and_deletes_old_ones(tmp_path: Path) -> None:
    found = settings("restante-backup.service")
    backups, data = tmp_path / "restante-backup", tmp_path / "restante"
    backups.mkdir()
    data.mkdir()
    for name, days in (("old", 15), ("new", 13)):
        (backups / f"{name}.sqlite").touch()
        os.utime(backups / f"{name}.sqlite", (time.time() - days * 86400 - 3600,) * 2)
    connect(str(data / "restante.sqlite")).close()
    for line in (*found["ExecStart"], *found["ExecStartPost"]):
        command = (
            line.replace("%%", "%")
            .replace("/var/lib", str(tmp_path))
            .replace(PROGRAM, f"{sys.executable} -m restante")
        )
        done = run("sh", "-c", command)
        assert done.returncode == 0, done.stderr
    assert len(list(backups.iterdir())) == 2
    assert not (backups / "old.sqlite").exists()


# ── socket activation ────────────────────────────────────────────────────────────────────────────

PASS_ON: Final = """
import os, sys
listening, *command = sys.argv[1:]
os.dup2(int(listening), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execvp(command[0], command)
"""
"""Starts a command with a listening socket, as systemd does (man 3 sd_listen_fds)."""


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
async def test_the_server_of_the_socket_unit_serves_a_client_that_came_before_it(
    tmp_path: Path, family: socket.AddressFamily
) -> None:
    [start] = re.findall(r"^ExecStart=(.+)$", GUIDE.blocks["socket service"], re.MULTILINE)
    start = start.replace(PROGRAM, f"{sys.executable} -m restante")
    start = start.replace("${STATE_DIRECTORY}", str(tmp_path / "data"))
    path = tmp_path / "s"
    with socket.socket(family) as listening:
        listening.bind(str(path) if family == socket.AF_UNIX else ("127.0.0.1", 0))
        listening.listen()
        its_side = socket.socket(family)
        its_side.connect(listening.getsockname())
        client = RawSocket(*await asyncio.open_connection(sock=its_side))
        client.write(handshake())
        words = (sys.executable, "-c", PASS_ON, str(listening.fileno()), *shlex.split(start), "--admin", "off")
        server = await asyncio.create_subprocess_exec(
            *words, pass_fds=[listening.fileno()], stderr=subprocess.DEVNULL, env=environment()
        )
        try:
            async with asyncio.timeout(PATIENCE):
                await client.reader.readuntil(b"\r\n\r\n")
            assert (await client.hear())["type"] == "welcome"
            client.cut()
        finally:
            server.terminate()
            code = await server.wait()
        assert code == 0
        assert ("s" in os.listdir(tmp_path)) == (family == socket.AF_UNIX), "who made it removes it"  # noqa: PTH208
