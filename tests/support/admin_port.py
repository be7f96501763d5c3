"""What an admin port shows, as tests read it: metrics, pages, events of a dashboard; and the manual of the pages."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from restante.common.disk_probe import INTERVAL_SECONDS
from restante.common.metrics import Metric
from support.bounds import bounded
from support.documents import ROOT

READY: Final = (200, "ok\n")
MONITORING: Final = ROOT / "docs" / "monitoring.md"

_NAME: Final = re.compile(r"`([a-z_.]+)`")


def counts(text: str) -> dict[str, float]:
    """Return each sample of a page of metrics by its name and the values of its labels, separated by spaces."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    values = {" ".join((sample.name, *sample.labels.values())): sample.value for sample in samples}
    assert len(values) == len(samples)
    return values


class Events:
    """The events of one dashboard (HTML, "Server-sent events")."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def until(self, name: str, **fields: Any) -> dict[str, Any]:
        async with bounded(f"{name} with {fields}"):
            while True:
                event = (await self._content.readuntil(b"\n\n")).decode()
                event_name, data = event.removeprefix("event: ").rstrip("\n").split("\ndata: ")
                if event_name == name and fields.items() <= (event_data := json.loads(data)).items():
                    return dict(event_data)


class Look:
    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.session = session
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with bounded(path), self.session.get(self.url + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def counts(self) -> dict[str, float]:
        status, text = await self.get("/metrics")
        assert status == 200, text
        return counts(text)

    async def reports(self, begin_fault: Callable[[], None], *words: str) -> None:
        """Begin a fault; /readyz, which keeps a result for a moment, becomes 503 and says one of these."""
        assert await self.get("/readyz") == READY
        begin_fault()
        status, text = await self.get("/readyz")
        fresh = time.monotonic() + INTERVAL_SECONDS
        async with bounded("503"):
            while status == READY[0]:
                begun = time.monotonic()
                status, text = await self.get("/readyz")
                assert status == 503 or begun < fresh, "a fresh probe does not notice it"
        assert text in words

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Events]:
        async with self.session.get(f"{self.url}/events", read_bufsize=2**20) as response:
            assert response.status == 200, await response.text()
            yield Events(response.content)

    async def shown(self) -> dict[str, Any]:
        async with self.watch() as events:
            return await events.until("now")


@asynccontextmanager
async def looking(port: int) -> AsyncIterator[Look]:
    async with aiohttp.ClientSession() as session:
        yield Look(session, port)


def documented(*servers: str) -> dict[str, str]:
    """Return the path of each field that the manual lists for these servers, and what it says of it."""
    manual, described = MONITORING.read_text(), dict[str, str]()
    for server in servers:
        table = manual.partition(f"Other fields of {server}:")[2].lstrip().partition("\n\n")[0]
        assert table, server
        for head, description in re.findall(r"^\| (`.+?) \| (.+) \|$", table, re.MULTILINE):
            described |= dict.fromkeys(_NAME.findall(head), description)
    return described


def sentences(beginning: str) -> set[str]:
    """Return the fields that the paragraph with this beginning names."""
    return set(_NAME.findall(MONITORING.read_text().partition(beginning)[2].partition("\n\n")[0]))


def other_fields(page: Mapping[str, Any], metrics: Mapping[str, Metric[Any]], prefix: str = "") -> Iterator[str]:
    """Yield the path of each field of a page that is no metric."""
    paths = {metric.path for metric in metrics.values()}
    for name, value in page.items():
        path = prefix + name
        if isinstance(value, dict) and path not in paths:
            yield from other_fields(value, metrics, f"{path}.")
        elif path not in paths:
            yield path
