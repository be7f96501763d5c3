"""A shell that executes the commands of documents, in a folder and on a port of its own."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.bounds import PATIENCE
from support.documents import ROOT
from support.ports import held_port
from support.processes import called, environment


class Shell:
    """Runs a document's commands in a folder, on a port that is free instead of the usual one."""

    def __init__(self, folder: Path, port: int, usual: int) -> None:
        self.folder = folder
        self.port = port
        self.usual = usual
        self.environment = {
            **environment(),
            # uv, if the suite was started with the project's own
            "PATH": f"{Path(sys.executable).parent}:{ROOT / '.tools' / 'uv' / 'bin'}:{os.environ['PATH']}",
            "RESTANTE_LISTEN": f"127.0.0.1:{self.port}",
            "RESTANTE_ADMIN": "off",
            "RESTANTE_RELAY_LISTEN": f"127.0.0.1:{self.port}",
            "RESTANTE_RELAY_ADMIN": "off",
            "RESTANTE_WAKU_LISTEN": f"127.0.0.1:{self.port}",
            "RESTANTE_WAKU_ADMIN": "off",
        }

    def here(self, command: str) -> str:
        return command.replace(f"127.0.0.1:{self.usual}", f"127.0.0.1:{self.port}")

    def run(self, command: str) -> str:
        if re.match(r"(restante|\./run) ", command) and not re.search(r"[|&;<>$`*~\\\n]", command):
            _, *arguments = shlex.split(self.here(command))
            with contextlib.chdir(self.folder):
                done = called(*arguments, **self.environment)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            return done.stdout
        if command.startswith("sqlite3 ") and shutil.which("sqlite3") is None:
            _, database, statement = command.split(maxsplit=2)
            with contextlib.closing(sqlite3.connect(self.folder / database)) as opened:
                opened.execute(statement.strip('"')).fetchall()
            return ""
        result = subprocess.run(
            ["sh", "-c", self.here(command)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
        return result.stdout

    @contextlib.contextmanager
    def running(self, command: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            ["sh", "-c", f"exec {self.here(command)}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGTERM)

    @contextlib.contextmanager
    def serving(self, command: str, says: str = "listening") -> Iterator[subprocess.Popen[str]]:
        with self.running(command) as server:
            self.match(server, f"({says})")
            yield server

    def match(self, process: subprocess.Popen[str], pattern: str) -> str:
        """Return the first group of the first match in what a process that `running` has started prints."""
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            if match := re.search(pattern, line):
                return match[1]
            printed.append(line)
        pytest.fail(f"it ended and did not print {pattern}: {''.join(printed)}")


@contextlib.contextmanager
def shell(folder: Path, usual: int = 4000) -> Iterator[Shell]:
    with held_port() as port:
        yield Shell(folder, port, usual)
