"""Files of `deploy/`: metrics that they name exist, and the dashboard has all of them; the Munin plugin works."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from support.admin_port import MONITORING, counts, looking
from support.bounds import BOUND, bounded
from support.documents import ROOT
from support.mailbox.clients import Client, Clients
from support.mailbox.pair import Pair
from support.mailbox.raw_socket import RawSocket
from support.monitoring import RULES, RULES_TEST, panels, recorded_names
from support.ports import held_port, nobodys_port
from support.processes import RELAY, RESTANTE, Serving, serving
from support.waku.processes import node_process

METRIC: Final = re.compile(r"\b(?:restante|waku|mailserver|process)_[a-z0-9_]+\b")
RECORDED: Final = re.compile(r"\b(?:restante|waku):[a-z0-9_:]+\b")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("servers")
    with held_port() as mailbox_port, held_port() as relay_port, held_port() as waku_port:
        async with (
            serving(folder / "mailbox", options=("--admin", f"127.0.0.1:{mailbox_port}")),
            serving(folder / "relay", RELAY, ("--admin", f"127.0.0.1:{relay_port}")),
            node_process(folder / "waku", "--admin", f"127.0.0.1:{waku_port}"),
            looking(mailbox_port) as mailbox,
            looking(relay_port) as relay,
            looking(waku_port) as waku,
        ):
            looks = {"mailbox": mailbox, "relay": relay, "waku": waku}
            return {name: (await look.get("/metrics"))[1] for name, look in looks.items()}


def test_rules_and_dashboard_name_only_metrics_and_labels_that_the_servers_have(pages: dict[str, str]) -> None:
    known = {name.split()[0] for page in pages.values() for name in counts(page)}
    queried: set[str] = set()
    for panel in panels():
        for query in panel.queries:
            assert METRIC.findall(query) or query.startswith("up{"), panel.title
            queried.update(METRIC.findall(query))
    assert queried.union(METRIC.findall(RULES.read_text()), METRIC.findall(RULES_TEST.read_text())) <= known
    for text in (RULES.read_text(), *(query for panel in panels() for query in panel.queries)):
        for label, value in re.findall(r'\b(kind|result|outcome|mode|cache)!?="([^"]+)"', text):
            assert any(f'{label}="{value}"' in page for page in pages.values()), (label, value)


def test_the_dashboard_has_every_metric(pages: dict[str, str]) -> None:
    texts = (str([panel.queries for panel in panels()]), str([counts(page) for page in pages.values()]))
    queried, known = ({re.sub(r"_(bucket|count|sum)$", "", name) for name in METRIC.findall(text)} for text in texts)
    assert known - queried <= {"process_virtual_memory_bytes"}


def test_every_rule_is_tested_and_in_the_guide_and_every_alert_says_what_to_do() -> None:
    rules, tested, guide = RULES.read_text(), RULES_TEST.read_text(), MONITORING.read_text()
    blocks = dict(re.findall(r"^      - alert: (\w+)\n((?:(?!      - ).*\n)*)", rules, re.MULTILINE))
    assert len(blocks) >= 23
    for name, block in blocks.items():
        for line in (
            r"        for: \d+m",
            r"          severity: (critical|warning)",
            r'          summary: ".*\{\{ \$labels\.instance \}\}.*\."',
            r"          runbook: docs/monitoring\.md#incidents",
        ):
            assert re.search(f"^{line}$", block, re.MULTILINE), (name, line)
        assert f"alertname: {name}\n        exp_alerts:" in tested, name
    assert "## Incidents" in guide
    recorded = recorded_names()
    assert [name for name in (*blocks, *recorded) if f"`{name}`" not in guide] == []
    assert set(RECORDED.findall(rules)) == set(recorded), "rules use only records that other rules make"
    assert set(RECORDED.findall(tested)) == set(recorded)


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
"""Those of magic-wormhole-mailbox-server 0.8.0 (misc/munin), and `crowded`, which they print without a label."""

RELAY_FIELDS: Final = {
    "transit_active": ["waiting", "connected"],
    "transit_bytes": ["bytes", "incomplete"],
    "transit_bytes_alltime": ["bytes", "incomplete"],
    "transit_events": ["happy", "errory", "lonely", "redundant", "impatient", "empty"],
    "transit_events_alltime": ["happy", "errory", "lonely", "redundant", "impatient", "empty"],
}
"""Those of magic-wormhole-transit-relay 0.5.0 (misc/munin), and the results `impatient` and `empty`."""


class Munin:
    def __init__(self, folder: Path, port: int | None = None, **variables: str) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port or nobodys_port()}"
        self.variables = {"PATH": os.environ["PATH"], "url": self.url, **variables}
        folder.mkdir(exist_ok=True)

    def run(self, link: str, *arguments: str) -> tuple[int, str, str]:
        plugin = self.folder / link
        if not plugin.is_symlink():
            plugin.symlink_to(PLUGIN)
        command = [str(plugin), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False, timeout=BOUND
        )
        return done.returncode, done.stdout, done.stderr

    def lines(self, link: str, *arguments: str) -> list[str]:
        code, printed, error = self.run(link, *arguments)
        assert (code, error) == (0, "")
        return printed.splitlines()

    def values(self, graph: str, prefix: str = "restante_") -> dict[str, float]:
        pairs = [line.split(".value ") for line in self.lines(prefix + graph)]
        return {name: float(value) for name, value in pairs}


@asynccontextmanager
async def watched(
    folder: Path, *options: str, program: tuple[str, ...] = RESTANTE
) -> AsyncIterator[tuple[Munin, Serving]]:
    with held_port() as port:
        async with serving(folder / "data", program, ("--admin", f"127.0.0.1:{port}", *options)) as server:
            yield Munin(folder / "plugins", port, data=str(folder / "data"), python_client_versions="0.24.0"), server


async def bound(clients: Clients, server: Serving, side: str, *version: str) -> Client:
    client = await clients.connect(server.url)
    await client.call("bind", appid="app", side=side, client_version=version)
    return client


@pytest.mark.parametrize("graph", FIELDS | RELAY_FIELDS)
def test_config_describes_every_field_and_needs_no_server(graph: str, tmp_path: Path) -> None:
    munin = Munin(tmp_path, python_client_versions="0.24.0")
    fields = (FIELDS | RELAY_FIELDS)[graph]
    described = dict(line.split(" ", 1) for line in munin.lines(f"restante_{graph}", "config"))
    assert {"graph_title", "graph_vlabel", "graph_category", "graph_info"} <= set(described)
    assert described["graph_category"] == "wormhole"
    assert [name.removesuffix(".label") for name in described if name.endswith(".label")] == fields
    for field in fields:
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
        expected = {
            "active": {"nameplates": 1, "mailboxes": 1, "messages": 1},
            "errors": {"nameplates": 0, "mailboxes": 2, "mailboxes_scary": 1},
            "event_rate": {"happy": 3, "incomplete": 1, "scary": 1},
            "events": results,
            "events_alltime": results,
            "version_uptake": {"v_unknown": 6, "v_non_python": 1, "v_other": 1, "v_0_24_0": 1},
        }
        for graph, fields in FIELDS.items():
            assert munin.values(graph) == expected[graph]
            assert list(munin.values(graph)) == fields
        assert munin.values("active", "wormhole_") == munin.values("active")
        assert munin.lines("restante_", "autoconf") == ["yes"]
        assert munin.lines("restante_", "suggest") == list(FIELDS)
        munin.variables["data"] = str(tmp_path)
        assert munin.lines("restante_", "suggest") == list(FIELDS)[:4]
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    async with watched(tmp_path, "--admin-token-file", str(tmp_path / "token")) as (munin, server):
        code, printed, error = munin.run("restante_active")
        assert (code, printed, error.endswith("/varz answered 401 Unauthorized\n")) == (1, "", True)
        assert munin.lines("restante_", "autoconf") == [f"no ({munin.url}/varz answered 401 Unauthorized)"]
        munin.variables["token_file"] = str(tmp_path / "token")
        await Pair(server.port).play()
        assert munin.values("events")["happy"] == 1
        assert munin.values("events_alltime")["happy"] == 4, "of the records, also after a restart"


async def test_values_are_what_the_relay_did(tmp_path: Path) -> None:
    async with watched(tmp_path, program=RELAY) as (munin, relay):
        port = int(relay.url.rpartition(":")[2])
        ended = [await RawSocket.connect(port) for _ in "12"]
        open_ones = [await RawSocket.connect(port) for _ in "123"]
        for client, token in zip((*ended, *open_ones), "aabbc", strict=True):
            client.write(b"please relay %s\n" % (token.encode() * 64))
        for pair, size in ((ended, 100), (open_ones[:2], 50)):
            for client in pair:
                assert await client.reader.readline() == b"ok\n"
            pair[0].write(b"x" * size)
            assert await pair[1].reader.readexactly(size)
        ended[0].cut()
        assert await ended[1].rest() == b""
        results = {**dict.fromkeys(RELAY_FIELDS["transit_events"], 0.0), "happy": 1.0}
        expected = {
            "transit_active": {"waiting": 1, "connected": 2},
            "transit_bytes": {"bytes": 100, "incomplete": 150},
            "transit_bytes_alltime": {"bytes": 100, "incomplete": 150},
            "transit_events": results,
            "transit_events_alltime": results,
        }
        async with bounded("the record is saved"):
            while (values := {graph: munin.values(graph) for graph in RELAY_FIELDS}) != expected:
                assert relay.running
        assert {graph: list(values[graph]) for graph in RELAY_FIELDS} == RELAY_FIELDS
        assert munin.values("transit_active", "wormhole_") == expected["transit_active"]
        assert munin.lines("restante_", "autoconf") == ["yes"]
        assert munin.lines("restante_", "suggest") == list(RELAY_FIELDS)
        assert munin.run("restante_active")[2] == f"{munin.url}/varz is not that of a mailbox server (env.url)\n"
        for client in (ended[1], *open_ones):
            client.cut()


def test_the_plugin_is_a_program_of_its_own_and_says_in_one_line_what_it_cannot_use(tmp_path: Path) -> None:
    text = PLUGIN.read_text()
    assert "\n#%# family=auto\n#%# capabilities=autoconf suggest\n" in text
    assert "import restante" not in text
    munin = Munin(tmp_path / "plugins", data=str(tmp_path))
    for graph, reason in (("active", "Connection refused"), ("events_alltime", "unable to open database file")):
        code, printed, error = munin.run(f"restante_{graph}")
        assert (code, printed, error.count("\n"), reason in error) == (1, "", 1, True)
    assert munin.lines("restante_", "autoconf")[0].startswith("no (")
    assert munin.lines("restante_", "suggest") == []
    names = f"link this file as restante_NAME; names are {', '.join(FIELDS | RELAY_FIELDS)}\n"
    assert munin.run("restante_nothing") == (2, "", names)
    munin.variables["token_file"] = str(tmp_path / "token")
    for content in (f"{TOKEN}\nsecond line\n", "", "two words"):
        (tmp_path / "token").write_text(content)
        code, printed, error = munin.run("restante_active")
        assert (code, printed) == (1, "")
        assert "token must have the token and nothing else (env.token_file)" in error
        assert TOKEN not in error


@pytest.mark.thorough
async def test_an_admin_port_of_another_server_is_named(tmp_path: Path) -> None:
    with held_port() as port:
        async with node_process(tmp_path / "waku", "--admin", f"127.0.0.1:{port}"):
            code, _, error = Munin(tmp_path / "munin", port).run("restante_active")
            assert code != 0
            assert "is not that of a mailbox server (env.url)" in error
