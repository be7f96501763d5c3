"""A real Prometheus scrapes a mailbox server and a Waku node under load, with the files of `deploy/`.

Prometheus and promtool come from the PATH, else from their Debian package, else these tests are skipped.
"""

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

from support.bounds import PATIENCE, bounded
from support.certificates import Certificate
from support.foreign import foreign
from support.mailbox.pair import Pair
from support.monitoring import PROMETHEUS, RULES, RULES_TEST, filled_in, panels, recorded_names
from support.ports import held_port
from support.processes import Child, child, run, serving
from support.waku.asking import fetch_page
from support.waku.letters import letter
from support.waku.processes import NodeProcess, node_process

pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("prometheus")]

TOKEN: Final = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    """Prometheus and promtool."""
    return {name: program.path for name, program in foreign("prometheus", "prometheus", "promtool").items()}


@dataclass
class Scraped:
    """A Prometheus, and what it scrapes."""

    http: aiohttp.ClientSession
    url: str
    process: Child

    async def get(self, path: str, **query: str) -> Any:
        async with self.http.get(f"{self.url}/api/v1/{path}", params=query) as answer:
            found = await answer.json()
            assert found["status"] == "success", (path, query, found)
            return found["data"]

    async def values(self, query: str) -> list[float]:
        """Return the values of a query that are numbers."""
        found = await self.get("query", query=query)
        values = [float(each["value"][1]) for each in found["result"]]
        return [each for each in values if not math.isnan(each)]

    async def until(self, what: str, holds: Callable[[], Awaitable[object]]) -> None:
        """Poll until something holds. Prometheus scrapes each second."""
        async with bounded(what, PATIENCE):
            while not await holds():
                assert self.process.running, self.process.said
                await asyncio.sleep(0.2)


@asynccontextmanager
async def scraping(
    program: Path, folder: Path, targets: dict[str, str], token_file: Path
) -> AsyncIterator[tuple[str, Child]]:
    """Run Prometheus with the example's configuration, which scrapes these targets each second; gives its URL."""
    config = (PROMETHEUS / "prometheus.yml").read_text().replace("15s", "1s")
    for usual, target in targets.items():
        assert usual in config
        config = config.replace(usual, target)
    for line in ("authorization:", "  credentials_file: "):
        assert f"    # {line}" in config
        config = config.replace(f"    # {line}", f"    {line}", 1)
    config = config.replace("/etc/prometheus/restante-token", str(token_file))
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(RULES, folder)
    with held_port() as port:
        words = (
            str(program),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'samples'}",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        async with child(*words) as process:
            await process.says("Server is ready to receive web requests")
            yield f"http://127.0.0.1:{port}", process


@asynccontextmanager
async def scraped(programs: dict[str, Path], folder: Path) -> AsyncIterator[Scraped]:
    """Run both servers under load, and a Prometheus."""
    (folder / "token").write_text(TOKEN)
    with held_port() as mailbox_port, held_port() as waku_port:
        mailbox, waku = f"127.0.0.1:{mailbox_port}", f"127.0.0.1:{waku_port}"
        targets = {"127.0.0.1:4010": mailbox, "127.0.0.1:4011": waku}
        file = str(Certificate(folder).path)  # of no listener, but its metric has a value
        options: tuple[str, ...] = ("--admin", mailbox, "--admin-token-file", str(folder / "token"))
        options += ("--listen", "plain:127.0.0.1:0", "--tls-cert", file, "--tls-key", file)
        async with (
            serving(folder / "mailbox", options=options) as server,
            node_process(folder / "waku", "--admin", waku) as node,
            scraping(programs["prometheus"], folder, targets, folder / "token") as (url, process),
            aiohttp.ClientSession() as http,
            under_load(server.port, node),
        ):
            yield Scraped(http, url, process)


@asynccontextmanager
async def under_load(port: int, node: NodeProcess) -> AsyncIterator[None]:
    """Let a pair of clients have sessions, and a peer post envelopes and fetch them, as long as the block lasts."""
    pair = Pair(port)
    posting = asyncio.create_task(_post_and_fetch(node))
    pair.start()
    try:
        yield
        assert not posting.done() or posting.result() is None
    finally:
        posting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await posting
        await pair.stop()


async def _post_and_fetch(node: NodeProcess) -> None:
    peer, number = await node.greet(), 0
    while True:
        now = int(time.time())
        await peer.post(*(letter(number + each, now=now) for each in range(5)))
        await fetch_page(peer, lower=now - 5, upper=now)
        number += 5


async def test_every_query_has_data_and_servers_under_load_raise_no_alert(
    programs: dict[str, Path], tmp_path: Path
) -> None:
    async with scraped(programs, tmp_path) as here:

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
            words = f"data for {panel.title} of {panel.row}: {query}"
            await here.until(words, partial(here.values, filled_in(query)))
        assert len(await here.values('up{job=~"restante|restante-waku"} == 1')) == 2
        await here.until("all rules evaluated", all_are_evaluated)
        alerts = await here.get("query", query='ALERTS{alertstate="firing"}')
        assert alerts["result"] == []


async def test_an_alert_is_pending_as_soon_as_a_server_has_ended(programs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with held_port() as port:
        admin = f"127.0.0.1:{port}"
        targets = {"127.0.0.1:4010": admin, "127.0.0.1:4011": admin}
        async with (
            scraping(programs["prometheus"], tmp_path, targets, tmp_path / "token") as (url, process),
            aiohttp.ClientSession() as http,
        ):
            here = Scraped(http, url, process)
            options = ("--admin", admin, "--admin-token-file", str(tmp_path / "token"))
            async with serving(tmp_path / "mailbox", options=options):
                await here.until("the server up", lambda: here.values('up{job="restante"} == 1'))
            down = 'ALERTS{alertname="RestanteDown", job="restante", alertstate="pending"}'
            await here.until("the alert", lambda: here.values(down))


async def test_promtool_has_nothing_to_say_about_metrics(programs: dict[str, Path], tmp_path: Path) -> None:
    with held_port() as mailbox_port, held_port() as waku_port:
        async with (
            serving(tmp_path / "mailbox", options=("--admin", f"127.0.0.1:{mailbox_port}")),
            node_process(tmp_path / "waku", "--admin", f"127.0.0.1:{waku_port}"),
            aiohttp.ClientSession() as http,
        ):
            for port in (mailbox_port, waku_port):
                async with http.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    page = await answer.text()
                checked = run(programs["promtool"], "check", "metrics", stdin=page)
                assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_promtool_accepts_the_rules_and_the_example(programs: dict[str, Path], tmp_path: Path) -> None:
    for command in (("check", "rules", RULES), ("check", "config", PROMETHEUS / "prometheus.yml")):
        checked = run(programs["promtool"], *command)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "SUCCESS" in checked.stdout


def test_each_alert_fires_when_it_should_and_is_silent_otherwise(programs: dict[str, Path], tmp_path: Path) -> None:
    tested = run(programs["promtool"], "test", "rules", RULES_TEST.name, cwd=PROMETHEUS, bound=PATIENCE)
    assert (tested.returncode, "SUCCESS" in tested.stdout) == (0, True), tested.stdout + tested.stderr
