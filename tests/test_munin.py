"""The Munin plugin, run as Munin runs it, beside a real server."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from support.bounds import BOUND
from support.documents import ROOT
from support.mailbox.clients import Client, Clients
from support.mailbox.pair import Pair
from support.ports import held_port, nobodys_port
from support.processes import Serving, serving
from support.waku.processes import node_process

PLUGIN: Final = ROOT / "deploy" / "munin" / "restante_"
TOKEN: Final = "correct-horse-battery-staple"

FIELDS: Final = {
    "active": ["nameplates", "mailboxes", "messages"],
    "errors": ["nameplates", "mailboxes", "mailboxes_scary"],
    "event_rate": ["happy", "incomplete", "scary"],
    "events": ["total", "happy", "lonely", "pruney", "scary", "errory", "crowded"],
    "events_alltime": ["total", "happy", "lonely", "pruney", "scary", "errory", "crowded"],
    "version_uptake": ["v_unknown", "v_non_python", "v_other", "v_0_24_0"],
}
"""Those of the reference server's plugins (misc/munin of magic-wormhole-mailbox-server 0.8.0), and `crowded`, whose
value they print without a label."""


class Munin:
    """Runs the plugin by links, with the variables of its configuration and no others."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.variables = {"PATH": os.environ["PATH"], "python_client_versions": "0.24.0", **variables}
        folder.mkdir(exist_ok=True)

    def runs(self, link: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the plugin by a link of this name."""
        plugin = self.folder / link
        if not plugin.is_symlink():
            plugin.symlink_to(PLUGIN)
        return subprocess.run(
            [str(plugin), *words],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=BOUND,
        )

    def lines(self, link: str, *words: str) -> list[str]:
        done = self.runs(link, *words)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.splitlines()

    def values(self, graph: str, prefix: str = "restante_") -> dict[str, float]:
        """Fetch the values of a graph."""
        pairs = [line.split(".value ") for line in self.lines(prefix + graph)]
        return {name: float(value) for name, value in pairs}


@asynccontextmanager
async def watched(folder: Path, *options: str, **variables: str) -> AsyncIterator[tuple[Munin, Serving]]:
    """Run a server, and Munin beside it."""
    with held_port() as port:
        async with serving(folder / "data", options=("--admin", f"127.0.0.1:{port}", *options)) as server:
            data = str(folder / "data")
            yield Munin(folder / "plugins", url=f"http://127.0.0.1:{port}", data=data, **variables), server


async def bound(clients: Clients, server: Serving, side: str, *version: str) -> Client:
    """Connect a client that names its version."""
    client = await clients.connect(server.url)
    await client.call("bind", appid="app", side=side, client_version=version)
    return client


def test_the_plugin_is_a_program_of_its_own() -> None:
    assert PLUGIN.stat().st_mode & stat.S_IXUSR
    text = PLUGIN.read_text()
    assert text.startswith("#!/usr/bin/env python3\n")
    assert "\n#%# family=auto\n#%# capabilities=autoconf suggest\n" in text
    assert "import restante" not in text


@pytest.mark.parametrize("graph", FIELDS)
def test_config_describes_every_field_and_needs_no_server(graph: str, tmp_path: Path) -> None:
    lines = Munin(tmp_path, url=f"http://127.0.0.1:{nobodys_port()}").lines(f"restante_{graph}", "config")
    described = dict(line.split(" ", 1) for line in lines)
    assert {"graph_title", "graph_vlabel", "graph_category", "graph_info"} <= set(described)
    assert described["graph_category"] == "wormhole"
    assert [name.removesuffix(".label") for name in described if name.endswith(".label")] == FIELDS[graph]
    for field in FIELDS[graph]:
        assert described[f"{field}.type"] == ("DERIVE" if graph == "event_rate" else "GAUGE")
        assert described[f"{field}.min"] == "0"


async def test_values_are_what_clients_did_also_after_a_restart_with_a_token(tmp_path: Path) -> None:
    async with watched(tmp_path) as (munin, server), Clients() as clients:
        pair = Pair(server.port)
        for _ in range(3):
            await pair.play()
        waiting = await bound(clients, server, "waiting", "python", "0.24.0")
        mailbox = (await waiting.call("claim", nameplate="4"))["mailbox"]
        await waiting.call("open", mailbox=mailbox)
        await waiting.call("add", phase="pake", body="")
        for side, *version in (("rust", "rust", "0.8.1"), ("old", "python", "0.12.0")):
            other = await bound(clients, server, side, *version)
            await other.call("open", mailbox=side)
            await other.call("close", mood="scary" if side == "old" else "lonely")
        results = {"happy": 3, "lonely": 1, "scary": 1, "pruney": 0, "errory": 0, "crowded": 0, "total": 5}
        assert munin.values("active") == {"nameplates": 1, "mailboxes": 1, "messages": 1}
        assert munin.values("errors") == {"nameplates": 0, "mailboxes": 2, "mailboxes_scary": 1}
        assert munin.values("events") == results
        assert munin.values("events_alltime") == results
        assert munin.values("event_rate") == {"happy": 3, "incomplete": 1, "scary": 1}
        versions = {"v_unknown": 6, "v_non_python": 1, "v_other": 1, "v_0_24_0": 1}
        assert munin.values("version_uptake") == versions
        for graph, fields in FIELDS.items():
            assert list(munin.values(graph)) == fields
        assert munin.values("active", "wormhole_") == munin.values("active")
        assert munin.lines("restante_", "autoconf") == ["yes"]
        assert munin.lines("restante_", "suggest") == list(FIELDS)
        munin.variables["data"] = str(tmp_path)
        assert munin.lines("restante_", "suggest") == list(FIELDS)[:4]
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    async with watched(tmp_path, "--admin-token-file", str(tmp_path / "token")) as (munin, server):
        refused = munin.runs("restante_active")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.endswith("/varz answered 401 Unauthorized\n")
        assert munin.lines("restante_", "autoconf") == [
            f"no ({munin.variables['url']}/varz answered 401 Unauthorized)"
        ]
        munin.variables["token_file"] = str(tmp_path / "token")
        await Pair(server.port).play()
        assert munin.values("events")["happy"] == 1
        assert munin.values("events_alltime")["happy"] == 4, "of the records, also after a restart"


@pytest.mark.parametrize("graph", ["active", "events_alltime"])
def test_without_a_server_or_its_data_the_plugin_says_so_in_one_line(graph: str, tmp_path: Path) -> None:
    munin = Munin(tmp_path / "plugins", url=f"http://127.0.0.1:{nobodys_port()}", data=str(tmp_path))
    done = munin.runs(f"restante_{graph}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert ("Connection refused" if graph == "active" else "unable to open database file") in done.stderr
    assert munin.lines("restante_", "autoconf")[0].startswith("no (")
    assert munin.lines("restante_", "suggest") == []


def test_a_link_with_another_name_is_misuse(tmp_path: Path) -> None:
    done = Munin(tmp_path).runs("restante_nothing")
    assert done.returncode == 2
    assert done.stderr == f"link this file as restante_NAME; names are {', '.join(FIELDS)}\n"


@pytest.mark.parametrize("content", [f"{TOKEN}\nsecond line\n", "", "two words"])
def test_a_file_that_is_no_token_is_named_and_not_shown(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    munin = Munin(tmp_path / "munin", url=f"http://127.0.0.1:{nobodys_port()}", token_file=str(tmp_path / "token"))
    ended = munin.runs("restante_active")
    assert ended.returncode != 0
    assert "token must have the token and nothing else (env.token_file)" in ended.stderr
    assert TOKEN not in ended.stdout + ended.stderr


@pytest.mark.thorough
async def test_an_admin_port_of_another_server_is_named(tmp_path: Path) -> None:
    with held_port() as port:
        async with node_process(tmp_path / "waku", "--admin", f"127.0.0.1:{port}"):
            ended = Munin(tmp_path / "munin", url=f"http://127.0.0.1:{port}").runs("restante_active")
            assert ended.returncode != 0
            assert "is not that of a mailbox server (env.url)" in ended.stderr
