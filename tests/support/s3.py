"""An S3 server on this machine: moto, of a pinned version, in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from support.tools import TOOLS, build, fetch, installed, uv

PINS: Final = Path(__file__).with_name("moto.txt")


SERVER: Final = """
import re
import sys
import threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from werkzeug.wrappers import Response

moto = DomainDispatcherApplication(create_backend_app)
kind, expires, fails = sys.argv[1:]
refused_keys, refused_requests = set(), []
one_at_a_time = threading.Lock()  # moto looks for an object, and then puts it
REFUSAL = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


def application(environ, start_response):
    request = environ["REQUEST_METHOD"] + " " + environ["PATH_INFO"]
    [key] = re.findall("Credential=([^/]*)", environ.get("HTTP_AUTHORIZATION", "")) or [""]
    if expires and not refused_keys and re.search(expires, request):
        refused_keys.add(key)
    fails_now = fails and not refused_requests and re.search(fails, request)
    if fails_now:
        refused_requests.append(request)
    if fails_now or key in refused_keys:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        return Response(REFUSAL, 403, content_type="application/xml")(environ, start_response)
    if kind == "unconditional":
        environ.pop("HTTP_IF_NONE_MATCH", None)
    if "HTTP_IF_NONE_MATCH" not in environ:
        return moto(environ, start_response)
    with one_at_a_time:
        return moto(environ, start_response)


server = make_server("127.0.0.1", 0, application, threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""


@contextmanager
def s3_bucket(name: str, **options: Any) -> Iterator[dict[str, str]]:
    """Yield the environment of programs that use a bucket. The options and errors are those of `s3_server`."""
    with s3_server(**options) as host, urlopen(Request(f"http://{host}/{name}", method="PUT")):
        yield {
            "AWS_ENDPOINT_URL": f"http://{host}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "canary-id",
            "AWS_SECRET_ACCESS_KEY": "canary-key",
        }


SDK: Final = "2.35.4"
"""The version of Amazon's library that hadoop-aws 3.5.0 asks for."""


def with_sdk(connector: str) -> str:
    """Return the packages of Spark's connector with the parts of Amazon's library that it loads, not all of it."""
    parts = ("s3", "s3-transfer-manager", "sts")
    return ",".join([connector, *(f"software.amazon.awssdk:{part}:{SDK}" for part in parts)])


def connector_settings(folder: Path) -> dict[str, str]:
    """Return the environment of a Spark that is given such packages; `folder` is for its settings."""
    settings = {
        "spark.jars.excludes": "software.amazon.awssdk:bundle",  # which has 640 MB
        "spark.jars.ivy": str(TOOLS / "ivy"),
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return {"SPARK_CONF_DIR": str(folder)}


@contextmanager
def s3_server(*, conditional: bool = True, expires: str = "", fails: str = "") -> Iterator[str]:
    """Yield the HOST:PORT of a server without buckets, which ignores If-None-Match unless it is `conditional`.

    The first request that matches `fails` is refused. From the first one on that matches `expires`, all with its
    access key are. Both are regular expressions for a method and a path. Raises MissingError if it cannot be
    installed.
    """

    def install(new: Path) -> None:
        build(uv(), "venv", "--quiet", "--relocatable", "--python", sys.executable, new / "venv", cwd=new)
        python = new / "venv" / "bin" / "python"
        fetch("uv", uv(), "pip", "install", "--quiet", "--require-hashes", "--python", python, "-r", PINS, cwd=new)

    folder = installed("moto", PINS.read_bytes() + sys.version.encode(), install)
    kind = "conditional" if conditional else "unconditional"
    command = (folder / "venv" / "bin" / "python", "-uc", SERVER, kind, expires, fails)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()
