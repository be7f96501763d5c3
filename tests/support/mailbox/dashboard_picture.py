"""Makes the README's picture of the dashboard: a server whose clients have come and gone for some minutes.

python -m support.mailbox.dashboard_picture [SECONDS]
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from playwright.async_api import ViewportSize, async_playwright, expect

from support.documents import ROOT
from support.mailbox.raw_socket import RawSocket
from support.processes import RESTANTE, serving
from support.timing.browser import launch_options

SECONDS: Final = 420.0
PEOPLE: Final = 12
VIEWPORT: Final = ViewportSize(width=1240, height=1130)
PICTURE: Final = ROOT / "docs/dashboard.png"
MOODS: Final = (*16 * ("happy",), "scary", "errory", "lonely")


async def transfers(port: int, person: int, until: float, dice: random.Random) -> None:
    """Do one transfer after the other; between two of them wait."""
    number = 0
    while time.monotonic() < until:
        number += 1
        sides = [await RawSocket.dial(port) for _ in range(2)]
        mood = dice.choice(MOODS)
        for side, name in zip(sides, "ab", strict=True):
            side.say(type="bind", appid="app", side=f"{name}-{person}-{number}")
            side.say(type="claim", nameplate=f"{person}{number}")
            side.say(type="open", mailbox=f"mailbox-{person}-{number}")
            await asyncio.sleep(dice.expovariate(1 / 3))
        for phase in range(4):
            for side in sides:
                side.say(type="add", phase=str(phase), body="00" * 200)
            await asyncio.sleep(dice.expovariate(4))
        if dice.random() < 0.02:
            sides[0].say(type="ping", ping="x" * 5000)
        for side in sides:
            side.say(type="release")
            side.say(type="close", mood=mood)
        await asyncio.sleep(0.3)
        for side in sides:
            side.cut()
        busy = 1 + (time.monotonic() // 60) % 4
        await asyncio.sleep(dice.expovariate(busy / 4))


async def take_picture(picture: Path, seconds: float) -> None:
    """Serve clients for so many seconds, and then store a picture of the dashboard."""
    with TemporaryDirectory() as folder:
        options = ("--admin", "127.0.0.1:0", "--limit", "message_bytes=4096")
        async with serving(Path(folder) / "data", RESTANTE, options) as server, async_playwright() as playwright:
            until = time.monotonic() + seconds
            people = [
                asyncio.create_task(transfers(server.port, each, until, random.Random(each)))
                for each in range(PEOPLE)
            ]
            await asyncio.sleep(seconds - 10)
            browser = await playwright.chromium.launch(**launch_options())
            page = await browser.new_page(viewport=VIEWPORT)
            await page.goto((await server.logged("the dashboard is open"))["url"])
            await expect(page.locator("#state")).to_have_text("Ready")
            await expect(page.locator("[data-grid] tbody tr").first).to_contain_text("happy")
            await page.screenshot(path=picture)
            await browser.close()
            await asyncio.gather(*people)


if __name__ == "__main__":
    asyncio.run(take_picture(PICTURE, float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
