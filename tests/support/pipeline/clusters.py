"""Clusters of Spark on loopback, started by the commands of the operator's guide."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from restante.pipeline.spark import java
from support.bounds import PATIENCE
from support.documents import Document
from support.pipeline.sessions import environment
from support.processes import kill_group, process_group

GUIDE = Document("docs/pipeline/operating.md")


def cluster_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a cluster's machine: all of them are this one. It has settings of Spark, too."""
    small = {"driver.memory": "1g", "executor.memory": "512m", "sql.shuffle.partitions": "4", "ui.enabled": "false"}
    return environment({f"spark.{name}": value for name, value in small.items()}) | {
        "JAVA_HOME": str(java.find_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_WEBUI_PORT": "0",
        "SPARK_WORKER_WEBUI_PORT": "0",
        **variables,
    }


class Daemon(NamedTuple):
    """A process of Spark in a process group of its own, and what it has said."""

    process: subprocess.Popen[str]
    output: Path

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until it has said this."""
        end = time.monotonic() + PATIENCE
        while not (match := re.search(pattern, self.output.read_text())):
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < end, self.output.read_text()
            time.sleep(0.05)
        return match

    def kill(self) -> None:
        """Kill it and all processes that it has started, as if its machine had failed."""
        kill_group(self.process)


@contextmanager
def daemon(commands: str, **variables: str) -> Iterator[Daemon]:
    """Run commands that start a process of Spark."""
    environ = cluster_environment(**variables)
    with (
        tempfile.NamedTemporaryFile() as output,
        process_group(["sh", "-e", "-c", commands], env=environ, stdout=output, stderr=output) as process,
    ):
        yield Daemon(process, Path(output.name))


def changed(block: str, changes: Mapping[str, str]) -> str:
    """Return a block of the guide with other values in place of its own, and with our programs."""
    for old, new in changes.items():
        assert old in block, f"{old} is not in {block}"
        block = block.replace(old, new)
    return block.replace(".venv/bin/python", sys.executable).replace("./run", f"{sys.executable} -m restante")


@contextmanager
def standalone(work: Path) -> Iterator[str]:
    """Start a master and two workers with one core each; give the master's URL."""
    with ExitStack() as stack:
        begun = stack.enter_context(daemon(changed(GUIDE.blocks["master"], {"10.0.0.1": "127.0.0.1", "7077": "0"})))
        master = begun.says(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[1]
        for started in [stack.enter_context(worker(master, work / f"worker-{number}")) for number in range(2)]:
            started.says("Successfully registered with master")
        yield master


@contextmanager
def worker(master: str, work: Path) -> Iterator[Daemon]:
    """Start a worker."""
    changes = {
        "spark://10.0.0.1:7077": master,
        "10.0.0.2": "127.0.0.1",
        "--cores 4": "--cores 1",
        "--memory 4g": "--memory 1g",
        "/var/tmp/spark": str(work),
    }
    with daemon(changed(GUIDE.blocks["worker"], changes)) as begun:
        yield begun


@contextmanager
def connect_server(master: str = "local[2]", **variables: str) -> Iterator[str]:
    """Run a Spark Connect server on a master; give its URL."""
    changes = {"spark://10.0.0.1:7077": f"'{master}'", "10.0.0.1": "127.0.0.1", "15002": "0"}
    with daemon(changed(GUIDE.blocks["connect"], changes), **variables) as server:
        port = server.says(r"Spark Connect server started at: \S+:(\d+)")[1]
        yield f"sc://127.0.0.1:{port}"
