"""Makes the picture of a transfer in the README: runs one on loopback, and draws what both sides printed.

PYTHONPATH=src:tests .venv/bin/python -m support.transfer_picture    writes it
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from support.documents import ROOT
from support.processes import RESTANTE

PICTURE: Final = ROOT / "docs/client/transfer.svg"
SERVER: Final = "127.0.0.1:4000"
COLUMNS: Final = 76


def transfer(folder: Path) -> Text:
    """Send a file to another folder; return what the sender and the receiver printed, in the order of time."""
    photo, downloads = folder / "photo.jpg", folder / "downloads"
    photo.write_bytes(os.urandom(25_600_000))
    downloads.mkdir()
    environment = {**os.environ, "RESTANTE_CLIENT_SERVER": f"ws://{SERVER}/v1", "RESTANTE_CLIENT_TRANSIT_RELAY": ""}
    command = (*RESTANTE, "send", photo.name)
    send = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    assert send.stderr is not None
    before = "".join(iter(send.stderr.readline, "Waiting for the other side …\n"))
    [code] = re.findall(r"code is: (\S+)", before)
    command = (*RESTANTE, "receive", code)
    receive = subprocess.Popen(
        command, cwd=downloads, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    received = receive.communicate("yes\n", timeout=60)[1].replace("(yes/no): ", "(yes/no): yes\n")
    after = send.communicate(timeout=60)[1]
    shown = Text()
    for who, typed, said in (
        ("sender", "restante send photo.jpg", f"{before}Waiting for the other side …\n"),
        ("receiver", f"restante receive {code}", received),
        ("sender", "", after),
    ):
        style = "bold cyan" if who == "sender" else "bold magenta"
        shown.append(f"{who} $ " if typed else who, style).append(f"{typed}\n", "bold")
        shown.append(f"{said}\n")
    shown.rstrip()
    return shown


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        serve = (*RESTANTE, "serve", "--data", "data", "--listen", SERVER, "--admin", "off")
        with subprocess.Popen(serve, cwd=name, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            assert "listening" in server.stderr.readline()
            shown = transfer(Path(name))
            server.terminate()
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(shown)
    svg = console.export_svg(title="A transfer", theme=DIMMED_MONOKAI, unique_id="transfer")
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))  # it loads no fonts


if __name__ == "__main__":
    main()
