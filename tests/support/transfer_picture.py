"""Makes the picture of a transfer in the README: runs one on loopback, and draws what both sides printed.

PYTHONPATH=src:tests .venv/bin/python -m support.transfer_picture    writes it
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from client.commands import command, end
from support.documents import ROOT
from support.processes import serving

PICTURE: Final = ROOT / "docs/client/transfer.svg"
LISTEN: Final = "127.0.0.1:4000"
SERVER: Final = ("--server", f"ws://{LISTEN}/v1")
COLUMNS: Final = 86


async def transfer(folder: Path) -> Text:
    """Send a file to another folder; return what the sender and the receiver printed, in the order of time."""
    (folder / "photo.jpg").write_bytes(os.urandom(25_600_000))
    (folder / "downloads").mkdir()
    no_relay: dict[str, Any] = {"RESTANTE_CLIENT_TRANSIT_RELAY": ""}
    async with (
        serving(folder / "data", options=("--listen", LISTEN)),
        command(folder, "send", *SERVER, "photo.jpg", **no_relay) as sender,
    ):
        code = (await sender.says(r"code is: (\S+)(.|\n)*Waiting for the other side …\n"))[1]
        before = sender.said["stderr"]
        async with command(folder / "downloads", "receive", *SERVER, code, typed=b"yes\n", **no_relay) as receiver:
            assert await end(receiver, sender) == (0, 0)
    shown = Text()
    for who, typed, said in (
        ("sender", f"restante send {' '.join(SERVER)} photo.jpg", before),
        (
            "receiver",
            f"restante receive {' '.join(SERVER)} {code}",
            receiver.said["stderr"].replace("(yes/no): ", "(yes/no): yes\n"),
        ),
        ("sender", "", sender.said["stderr"].removeprefix(before)),
    ):
        style = "bold cyan" if who == "sender" else "bold magenta"
        shown.append(f"{who} $ " if typed else who, style).append(f"{typed}\n", "bold")
        shown.append(f"{said}\n")
    shown.rstrip()
    return shown


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        transferred = asyncio.run(transfer(Path(name)))
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(transferred)
    svg = console.export_svg(title="A transfer", theme=DIMMED_MONOKAI, unique_id="transfer")
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))  # it loads no fonts
