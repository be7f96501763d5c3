"""A one-node HDFS on this machine, with the client's library that Spark has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from restante.pipeline.spark import java
from support.processes import environment, process_group
from support.tools import fetch, installed

SERVERS: Final = "org.apache.hadoop:hadoop-client-minicluster:3.5.0"
"""Hadoop's servers, of the version of Spark's Hadoop."""

VARIABLES: Final = {"JAVA_HOME": str(java.find_home()), "SPARK_LOCAL_IP": "127.0.0.1"}

START_JAVA: Final = """
import json, sys
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

conf = SparkConf(loadDefaults=False)
for name, value in json.loads(sys.argv[1]).items():
    conf.set(name, value)
jvm = launch_gateway(conf).jvm
"""

START_HDFS: Final = """
settings = jvm.org.apache.hadoop.conf.Configuration()
settings.set("hdfs.minidfs.basedir", sys.argv[2])
cluster = jvm.org.apache.hadoop.hdfs.MiniDFSCluster.Builder(settings).build()
cluster.waitActive()
print(cluster.getNameNodePort(), flush=True)
sys.stdin.read()
"""


@contextmanager
def hdfs(folder: Path) -> Iterator[str]:
    """Yield the URL of an HDFS whose data are in a folder. Raises MissingError if it cannot be installed."""

    def install(new: Path) -> None:
        settings = {
            "spark.jars.packages": SERVERS,
            "spark.jars.ivy": str(new / "ivy"),
            "spark.jars.excludes": "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime",
        }
        fetch("Spark", sys.executable, "-c", START_JAVA, json.dumps(settings), cwd=new, variables=VARIABLES)

    [jar] = installed("hdfs", SERVERS.encode(), install).glob("ivy/jars/*hadoop-client-minicluster*.jar")
    settings = {"spark.driver.extraClassPath": str(jar), "spark.driver.memory": "512m"}
    line = (sys.executable, "-c", START_JAVA + START_HDFS, json.dumps(settings), str(folder))
    with process_group(
        line,
        env=environment(**VARIABLES),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout
        yield f"hdfs://127.0.0.1:{int(process.stdout.readline())}"
