"""An S3 server on this machine: moto, of a pinned version, in an environment of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from support.tools import build, fetch, installed, uv

PINS: Final = Path(__file__).with_name("moto.txt")


@contextmanager
def s3_server() -> Iterator[str]:
    """Yield the HOST:PORT of a server without buckets. Raises MissingError if it cannot be installed."""

    def install(new: Path) -> None:
        build(uv(), "venv", "--quiet", "--relocatable", "--python", sys.executable, new / "venv", cwd=new)
        python = new / "venv" / "bin" / "python"
        fetch("uv", uv(), "pip", "install", "--quiet", "--require-hashes", "--python", python, "-r", PINS, cwd=new)

    folder = installed("moto", PINS.read_bytes() + sys.version.encode(), install)
    command = (folder / "venv" / "bin" / "python", "-um", "moto.server", "-H", "127.0.0.1", "-p", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        try:
            text = ""
            for line in process.stdout:
                text += line
                if match := re.search(r"Running on http://(127\.0\.0\.1:\d+)", line):
                    yield match[1]
                    return
            raise AssertionError(text)
        finally:
            process.kill()
