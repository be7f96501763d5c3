"""A real Prometheus scrapes a mailbox server, a relay and a Waku node under load, with the files of `deploy/`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from support import foreign
from support.bounds import PATIENCE, bounded
from support.certificates import Certificate
from support.mailbox.pair import Pair
from support.monitoring import PROMETHEUS, RULES, RULES_TEST, filled_in, panels, recorded_names
from support.ports import held_port
from support.processes import RELAY, Child, child, run, serving
from support.waku.letters import letter
from support.waku.processes import NodeProcess, node_process
from support.waku.raw_peer import fetch_page

pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("prometheus")]

TOKEN: Final = "correct-horse-battery-staple"


def prometheus(name: str = "prometheus") -> str:
    return str(foreign.program(name, "prometheus").path)


@dataclass
class Scraped:
    http: aiohttp.ClientSession
    url: str
    process: Child

    async def get(self, path: str, **query: str) -> Any:
        async with self.http.get(f"{self.url}/api/v1/{path}", params=query) as answer:
            result = await answer.json()
            assert result["status"] == "success", (path, query, result)
            return result["data"]

    async def values(self, query: str) -> list[float]:
        values = [float(item["value"][1]) for item in (await self.get("query", query=query))["result"]]
        return [value for value in values if not math.isnan(value)]

    async def until(self, what: str, holds: Callable[[], Awaitable[object]]) -> None:
        async with bounded(what, PATIENCE):
            while not await holds():
                assert self.process.running, self.process.said
                await asyncio.sleep(0.2)


@asynccontextmanager
async def scraping(folder: Path, mailbox: str, relay: str, waku: str, token_file: Path) -> AsyncIterator[Scraped]:
    config = (PROMETHEUS / "prometheus.yml").read_text()
    for example, here in (
        ("15s", "1s"),
        ("127.0.0.1:4010", mailbox),
        ("127.0.0.1:4011", waku),
        ("127.0.0.1:4012", relay),
        ("    # authorization:", "    authorization:"),
        ("    #   credentials_file: /etc/prometheus/restante-token", f"      credentials_file: {token_file}"),
    ):
        assert example in config
        config = config.replace(example, here)
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(RULES, folder)
    with held_port() as port:
        flags = (
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'samples'}",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        async with child(prometheus(), *flags) as process, aiohttp.ClientSession() as http:
            await process.says("Server is ready to receive web requests")
            yield Scraped(http, f"http://127.0.0.1:{port}", process)


@asynccontextmanager
async def under_load(port: int, node: NodeProcess) -> AsyncIterator[None]:
    async with Pair(port).playing():
        posting = asyncio.create_task(_post_and_fetch(node))
        try:
            yield
            assert not posting.done() or posting.result() is None
        finally:
            posting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await posting


async def _post_and_fetch(node: NodeProcess) -> None:
    peer, number = await node.greet(), 0
    while True:
        now = int(time.time())
        await peer.post(*(letter(number + offset, now=now) for offset in range(5)))
        await fetch_page(peer, lower=now - 5, upper=now)
        number += 5


async def test_three_servers_two_under_load_and_one_that_ends(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    file = str(Certificate(tmp_path).path)  # of no listener, but its metric has a value
    with held_port() as mailbox_port, held_port() as relay_port, held_port() as waku_port:
        mailbox, relay, waku = (f"127.0.0.1:{port}" for port in (mailbox_port, relay_port, waku_port))
        tls = ("--listen", "plain:127.0.0.1:0", "--tls-cert", file, "--tls-key", file)
        options = ("--admin", mailbox, "--admin-token-file", str(token), *tls)
        async with (
            serving(tmp_path / "mailbox", options=options) as server,
            serving(tmp_path / "relay", RELAY, ("--admin", relay, "--limit", "month_bytes=1000000", *tls)),
            node_process(tmp_path / "waku", "--admin", waku) as node,
            scraping(tmp_path, mailbox, relay, waku, token) as here,
        ):
            async with under_load(server.port, node):
                await assert_all_is_well(here)
                for admin in (mailbox, relay, waku):
                    await assert_promtool_is_content(here, admin)
            await server.stop()
            down = 'ALERTS{alertname="RestanteDown", job="restante", alertstate="pending"}'
            await here.until("the alert", lambda: here.values(down))


async def assert_all_is_well(here: Scraped) -> None:
    async def all_are_evaluated() -> bool:
        groups = (await here.get("rules"))["groups"]
        health = [rule["health"] for group in groups for rule in group["rules"]]
        assert "err" not in health, groups
        return len(health) > 20 and set(health) == {"ok"}

    for name in recorded_names():
        await here.until(f"a value of {name}", partial(here.values, name))
    queries = [(panel, query) for panel in panels() for query in panel.queries]
    assert len(queries) > 50
    for panel, query in queries:
        what = f"data for {panel.title} of {panel.row}: {query}"
        await here.until(what, partial(here.values, filled_in(query)))
    assert len(await here.values('up{job=~"restante|restante-relay|restante-waku"} == 1')) == 3
    await here.until("all rules evaluated", all_are_evaluated)
    alerts = await here.get("query", query='ALERTS{alertstate="firing"}')
    assert alerts["result"] == []


async def assert_promtool_is_content(here: Scraped, admin: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with here.http.get(f"http://{admin}/metrics", headers=headers) as answer:
        assert answer.status == 200
        page = await answer.text()
    checked = await asyncio.to_thread(run, prometheus("promtool"), "check", "metrics", stdin=page)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_promtool_accepts_the_rules_and_the_example_and_each_alert_fires_when_it_should() -> None:
    for line in (f"check rules {RULES.name}", "check config prometheus.yml", f"test rules {RULES_TEST.name}"):
        done = run(prometheus("promtool"), *line.split(), cwd=PROMETHEUS, bound=PATIENCE)
        assert (done.returncode, "SUCCESS" in done.stdout) == (0, True), done.stdout + done.stderr
