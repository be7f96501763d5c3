"""`restante health`: ask a server's admin port whether it works, for scripts and container checks."""

from __future__ import annotations

import math
import os
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from ssl import SSLError
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

import typer

from restante.common.errors import Misuse, RestanteError, plain

if TYPE_CHECKING:
    from restante.common.settings import ServerSettings

app = typer.Typer()

UNHEALTHY_EXIT: Final = 1
"""What the command exits with if the server says that it is not healthy, or not ready. Docker knows only 0 and 1."""

TIMEOUT: Final = 5.0
"""Seconds. The server answers within two: one for the disk, 0.8 for its event loop. A busy machine takes longer."""

MAX_BODY_BYTES: Final = 4096
"""Bytes that are read of an answer. The server sends one line."""


class NoAnswerError(RestanteError):
    """The server did not answer, or something else answered in its place."""

    exit_code = 3


class Endpoint(NamedTuple):
    """Where an admin port is."""

    tls: bool
    host: str
    port: int
    prefix: str
    """What comes before the path of a page, if a proxy adds it."""

    @property
    def url(self) -> str:
        """Return the URL of the port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"


@app.command("health")
def health(
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL|HOST:PORT]",
            help="Admin port of a mailbox server, relay or Waku node. Default: that of each server in the TOML file,"
            " or of the mailbox server.",
        ),
    ] = None,
    ready: Annotated[
        bool,
        typer.Option(
            "--ready", help="Ask whether the server can store what clients send. A relay: whether it makes pairs."
        ),
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with a token to send, for a proxy that demands one."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            show_default=False,
            metavar="SECONDS",
            min=0.1,
            max=3600,
            help=f"How long to wait for an answer. Default: {TIMEOUT:g}.",
        ),
    ] = TIMEOUT,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file of servers, to find their admin ports."),
    ] = None,
) -> None:
    """Ask a server whether it works. The exit code is 0 if it does."""
    if not math.isfinite(timeout):
        raise Misuse(f"--timeout: {timeout} is no number of seconds")
    endpoints = {"": _endpoint(server)} if server is not None else _configured_endpoints(config)
    failures, healthy = [], True
    for table, endpoint in endpoints.items():
        try:
            status, line = _request(endpoint, "/readyz" if ready else "/healthz", token_file, timeout)
        except NoAnswerError as error:
            failures.append(str(error))
        else:
            print(f"{table}: {line}" if len(endpoints) > 1 else line)
            healthy &= status == 200
    if failures:
        raise NoAnswerError("; ".join(failures))
    if not healthy:
        raise typer.Exit(UNHEALTHY_EXIT)


def _endpoint(text: str) -> Endpoint:
    """Return the endpoint that a URL or HOST:PORT names. Raises Misuse."""
    url = text if "://" in text else f"http://{text}"
    misuse = Misuse(f"'{text}' is not HOST:PORT or a URL, like 127.0.0.1:4010 or https://example.com/admin")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise misuse from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
        raise misuse
    if port is None and "://" not in text:
        raise misuse
    tls = parts.scheme == "https"
    return Endpoint(tls, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"))


def _configured_endpoints(config: Path | None) -> dict[str, Endpoint]:
    """Return the admin port of each server that has a table in the file, or of the mailbox server if none has one.

    The keys are the names of the tables. The settings are those of the file and the environment. Raises Misuse.
    """
    from restante.common.settings import TABLES, parse_address, read_settings_file, resolve_settings, settings_file

    file = settings_file(os.environ, config)
    tables = read_settings_file(file) if file else {}
    endpoints: dict[str, Endpoint] = {}
    for table in [table for table in TABLES if table in tables] or ["serve"]:
        settings, _ = resolve_settings(_server_settings(table), {}, os.environ, config)
        if settings.admin != "off":
            host, port = parse_address(settings.admin, "--admin")
            endpoints[table] = Endpoint(tls=False, host=host or "127.0.0.1", port=port, prefix="")
    if not endpoints:
        raise Misuse(
            "the settings say that the server has no admin port (--admin off): name one, like 127.0.0.1:4010"
        )
    return endpoints


def _server_settings(table: str) -> ServerSettings[Any]:
    """Return the options of the server with this table. Raises Misuse if its extra is not installed."""
    if table == "relay":
        from restante.relay.settings import RELAY

        return RELAY
    if table == "waku":
        from restante.common.extras import require_extra
        from restante.waku.settings import WAKU

        require_extra("waku")
        return WAKU
    from restante.mailbox.settings import SERVE

    return SERVE


def _request(endpoint: Endpoint, page: str, token_file: Path | None, timeout: float) -> tuple[int, str]:
    """Return the status and the line of an answer. Raises NoAnswerError and Misuse."""
    from restante.common.admin_access import read_token

    token = read_token(token_file, "--token-file") if token_file is not None else None
    connection = (HTTPSConnection if endpoint.tls else HTTPConnection)(endpoint.host, endpoint.port, timeout=timeout)
    try:
        connection.request(
            "GET", endpoint.prefix + page, headers={"Authorization": f"Bearer {token}"} if token else {}
        )
        response = connection.getresponse()
        body = response.read(MAX_BODY_BYTES).decode(errors="replace").strip()
    except TimeoutError as error:
        raise NoAnswerError(f"{endpoint.url}{page} did not answer within {timeout:g} s") from error
    except ConnectionResetError as error:  # before HTTPException: RemoteDisconnected is both
        raise NoAnswerError(f"{endpoint.url} closed the connection without an answer") from error
    except (HTTPException, UnicodeError) as error:
        raise NoAnswerError(f"{endpoint.url} does not speak HTTP") from error
    except SSLError as error:
        raise NoAnswerError(f"{endpoint.url}: TLS failed: {_tls_failure(error)}") from error
    except OSError as error:
        raise NoAnswerError(f"cannot reach {endpoint.url}: {plain(error)}: is the server running?") from error
    finally:
        connection.close()
    line = body.partition("\n")[0]
    if response.status not in {200, 503}:
        raise NoAnswerError(f"{endpoint.url}{page} answered {response.status}: {line or response.reason}")
    return response.status, line


def _tls_failure(error: SSLError) -> str:
    """Return why TLS failed, for people."""
    certificate_fault = getattr(error, "verify_message", "")
    if error.reason == "WRONG_VERSION_NUMBER":
        return "the server does not speak it: use http://"
    return certificate_fault or str(error.reason or error).lower().replace("_", " ")
