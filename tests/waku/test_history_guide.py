"""The guide to history runs: its commands, its program; and what it lists is complete."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import typer.main

from restante.cli.waku import app
from restante.common.dice import SystemDice
from restante.waku.client.actions import Budgets
from restante.waku.client.probe import Outcome
from restante.waku.envelope.envelope import make
from restante.waku.envelope.payload import SymmetricKey, seal, topic_of
from support.documents import Document
from support.processes import run
from support.waku.fake_node import listening
from support.waku.mailservers import Honest

GUIDE = Document("docs/waku/history.md")


def mailserver() -> Honest:
    """It has what was sent to a chat an hour and a day ago."""
    chat, dice, now = SymmetricKey.from_password("status"), SystemDice(), int(time.time())
    data = seal(b"held until called for", to=chat, dice=dice)
    return Honest([make(now - age + 50, 50, topic_of("status"), data) for age in (3600, 2 * 86400)])


async def shell(command: str, folder: Path) -> str:
    with_restante = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = await asyncio.to_thread(run, "sh", "-c", command, cwd=folder, variables=with_restante)
    assert (done.returncode, done.stderr) == (0, ""), f"{command}\n{done.stderr}"
    return done.stdout


async def test_the_commands_of_the_guide(tmp_path: Path) -> None:
    async with listening(mailserver(), password="status-offline-inbox") as (node, enode):
        (tmp_path / "enode.txt").write_text(f"{enode}\n")
        commands = GUIDE.commands("requests", " -o ", "plain", r"status\.json$", "--live", "probe")
        to_file, plain, with_state, live, probe = [await shell(each, tmp_path) for each in commands]
    assert to_file == "fetched 1 envelope\n"
    assert msgspec.json.decode((tmp_path / "history.jsonl").read_bytes())["text"] == "held until called for"
    assert len(plain.splitlines()) == len(with_state.splitlines()) == 1
    assert (tmp_path / "status.json").exists()
    assert live == ""  # the state knows it
    assert probe.startswith("all is well")
    assert node.wrong == []


async def test_the_program_of_the_guide() -> None:
    names: dict[str, Any] = {}
    exec(GUIDE.blocks["program"], names)
    async with listening(mailserver(), password="status-offline-inbox") as (_, enode):
        envelopes, state = await names["history"]([enode])
        again, _ = await names["history"]([enode], state)
    assert (len(envelopes), again) == (1, [])


def test_the_guide_has_every_flag_limit_and_exit_code() -> None:
    commands = typer.main.get_group(app).commands
    for name in ("request", "probe"):
        for option in (opt for each in commands[name].params for opt in each.opts if opt.startswith("-")):
            assert f"`{option}`" in GUIDE.text, option
    for name, default in msgspec.structs.asdict(Budgets()).items():
        assert f"| `{name}` | {default:,.0f} |" in GUIDE.text, name
    for outcome in Outcome:
        assert f"| {outcome.value} | " in GUIDE.text, outcome
