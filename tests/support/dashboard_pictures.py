"""The dashboards of both servers under load, and what their pictures in the documents show."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from support.documents import ROOT
from support.mailbox.raw_socket import RawSocket
from support.markup import Tags
from support.ports import held_port
from support.processes import serving
from support.waku.asking import fetch_page
from support.waku.letters import TOPIC, letter
from support.waku.processes import NodeProcess, node_process
from support.waku.raw_peer import FULL_NODE

FOLDER: Final = ROOT / "docs" / "dashboard"
STYLE: Final = ROOT / "src/restante/common/web/dashboard.css"
SCRIPT: Final = ROOT / "src/restante/common/web/dashboard.js"
FRAME: Final = ROOT / "src/restante/common/web/dashboard.html"
PAGES: Final = {
    "mailbox": ROOT / "src/restante/mailbox/server/web/sections.html",
    "node": ROOT / "src/restante/waku/node/web/sections.html",
}
"""The sections of each page, in the frame that both pages have."""

KEYWORD: Final = "Restante-Page"
"""The keyword of the text in a picture that says of which page it is."""

LABELS: Final = ("h1", "h2", "h3", "dt", "th", "caption", "label", "button")
"""Elements of a page whose texts are its labels."""

SAMPLED_OFTEN: Final = (
    sys.executable,
    "-c",
    "from restante.cli.main import main; from restante.common import admin_live as a; a.SAMPLE_SECONDS = 0.5; main()",
)
"""`restante`, whose dashboard has two samples a second, so that its charts have lines after some seconds."""

NOTHING_WANTED: Final = msgspec.structs.replace(FULL_NODE, topics=frozenset())
"""Of a peer to which nothing is relayed."""

PEOPLE: Final = 12
MOODS: Final = (*16 * ("happy",), "scary", "errory", "lonely")
OPTIONS: Final = ("--admin", "127.0.0.1:0", "--limit", "message_bytes=4096")
"""Of the mailbox server. So a message of 5,000 bytes is refused."""


def shown(server: str) -> str:
    """Return what a picture of this dashboard must say of its page: its labels, and which style and script."""
    texts = Tags(FRAME.read_text().replace("$sections", PAGES[server].read_text())).texts
    labels = [" ".join(text.split()) for tag in LABELS for text in texts.get(tag, ())]
    files = {"style": STYLE, "script": SCRIPT}
    digests = {kind: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for kind, file in files.items()}
    return json.dumps({"labels": labels, **digests})


@dataclass
class Dashboard:
    """A dashboard to look at."""

    server: str
    url: str
    last: str
    """The last element that a picture shows of it."""


@asynccontextmanager
async def mailbox(folder: Path) -> AsyncIterator[Dashboard]:
    """Run a mailbox server with clients that come and go."""
    async with serving(folder / "data", SAMPLED_OFTEN, OPTIONS) as server:
        url = (await server.logged("the dashboard is open"))["url"]
        async with running(*(_transfers(server.port, each) for each in range(PEOPLE))):
            yield Dashboard("mailbox", url, "section[aria-labelledby=limits]")


@asynccontextmanager
async def node(folder: Path) -> AsyncIterator[Dashboard]:
    """Run a Waku node with peers that post envelopes and fetch them."""
    with held_port() as port:
        options = ("--admin", f"127.0.0.1:{port}")
        async with (
            node_process(folder / "data", *options, program=(*SAMPLED_OFTEN, "waku")) as found,
            running(*(_posts(found, each) for each in range(PEOPLE // 3))),
        ):
            yield Dashboard("node", f"http://127.0.0.1:{port}/", "section[aria-labelledby=refusals]")


@asynccontextmanager
async def running(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these as long as the block lasts. None of them may end."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        yield
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _transfers(port: int, person: int) -> None:
    """Do one transfer after the other; the pauses between them are those of people."""
    dice = random.Random(person)
    for number in itertools.count(1):
        sides: list[RawSocket] = []
        try:
            await _transfer(port, f"{person}-{number}", sides, dice)
        finally:
            for side in sides:
                side.cut()
        busy = 1 + (time.monotonic() // 15) % 4
        await asyncio.sleep(dice.expovariate(busy / 4))


async def _transfer(port: int, name: str, sides: list[RawSocket], dice: random.Random) -> None:
    """Do one transfer, and add its connections to the list."""
    mood = dice.choice(MOODS)
    sides += [await RawSocket.dial(port)]
    sides += [await RawSocket.dial(port)]
    for side, which in zip(sides, "ab", strict=True):
        side.say(type="bind", appid="app", side=f"{which}-{name}")
        side.say(type="claim", nameplate=name.replace("-", "0"))
        side.say(type="open", mailbox=await _claimed(side))
        await asyncio.sleep(dice.expovariate(1))
    for phase in range(4):
        for side in sides:
            side.say(type="add", phase=str(phase), body="00" * 200)
        await asyncio.sleep(dice.expovariate(4))
    if dice.random() < 0.04:
        sides[0].say(type="ping", ping="x" * 5000)
    for side in sides:
        side.say(type="release")
        side.say(type="close", mood=mood)
    await asyncio.sleep(0.3)


async def _claimed(side: RawSocket) -> str:
    """Return the mailbox of the nameplate that was claimed."""
    while (told := await side.hear())["type"] != "claimed":
        pass
    mailbox: str = told["mailbox"]
    return mailbox


async def _posts(there: NodeProcess, person: int) -> None:
    """Post envelopes, of which some come again and some are too old, and fetch the last ones."""
    dice, peer = random.Random(person), await there.greet(NOTHING_WANTED)
    for number in itertools.count(1):
        now = int(time.time())
        first = 100_000 * person + 10 * number
        topic = dice.choice((TOPIC, TOPIC, b"news", b"chat"))
        envelopes = [letter(first + each, topic=topic, size=200, now=now) for each in range(dice.randint(1, 6))]
        await peer.post(*envelopes)
        if dice.random() < 0.2:
            await peer.post(*envelopes)
        if dice.random() < 0.05:
            await peer.post(letter(first, age=1000, now=now))
        if dice.random() < 0.5:
            await fetch_page(peer, lower=now - 10, upper=now)
        busy = 1 + (time.monotonic() // 15) % 4
        await asyncio.sleep(dice.expovariate(2 * busy))
