"""`restante waku`: the Mailserver's commands. What a subcommand needs is imported when it runs."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from restante.errors import Misuse

app = typer.Typer(no_args_is_help=True)


@app.callback()
def waku() -> None:
    """Hold Waku envelopes until they are asked for."""
    if importlib.util.find_spec("coincurve") is None:
        raise Misuse("this needs the extra 'waku': pip install 'restante[waku]'")


def _serve_options(
    config: Annotated[
        Path | None, typer.Option(help="TOML file with a table [waku]; keys are named like flags.")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Where everything is kept.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="*:PORT is every interface.")] = None,
    admin: Annotated[str | None, typer.Option(metavar="HOST:PORT|off", help="Health checks over HTTP.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The node's key; made if need be. Default: in the data.")
    ] = None,
    min_pow: Annotated[
        float | None, typer.Option(metavar="POW", help="Envelopes with less work are refused.")
    ] = None,
    max_ttl: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="Envelopes that are to live longer are refused.")
    ] = None,
    retention: Annotated[float | None, typer.Option(metavar="DAYS", help="How long envelopes are kept.")] = None,
    retention_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help="How much is kept, the oldest goes first. Default: no limit.")
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Archive only this topic; repeatable. Default: all.")
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(metavar="ENODE", help="Stay connected to; repeatable.")] = None,
    max_peers: Annotated[int | None, typer.Option(metavar="NUMBER")] = None,
    max_peers_per_address: Annotated[int | None, typer.Option(metavar="NUMBER")] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="`waku config` lists them; repeatable.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(metavar="auto|console|json")] = None,
) -> None:
    """Declare the options of `waku serve`; `_serving` hands them on."""


def _serving(run: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(_serve_options)
    def command(*, config: Path | None = None, **flags: Any) -> None:
        from restante.config import settle
        from restante.waku.config import WAKU

        given = {name: None if value == [] else value for name, value in flags.items()}
        run(*settle(WAKU, given, os.environ, config))

    command.__doc__ = run.__doc__
    return command


@app.command("serve")
@_serving
def serve_command(settings: Any, _sources: Any) -> None:
    """Run the node; its enode is the first line of the output."""
    from restante.ops import logs
    from restante.waku.serve import serve

    logs.start(settings.log_format)
    os.umask(0o077)  # what is in the data directory is nobody else's business
    serve(settings)


@app.command()
def post(
    node: Annotated[str, typer.Argument(metavar="ENODE", help="The node to hand it to.")],
    text: Annotated[str, typer.Argument(help="What to post; - reads standard input.")] = "-",
    channel: Annotated[
        str | None, typer.Option(metavar="NAME", help="A public chat: topic and key come from its name.")
    ] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="8 hexadecimal digits.")] = None,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Seal with the key of the password in it.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="KEY", help="Seal for a public key, 128 hexadecimal digits.")
    ] = None,
    sign: Annotated[Path | None, typer.Option(metavar="FILE", help="Sign with the key in it.")] = None,
    ttl: Annotated[int, typer.Option(metavar="SECONDS", min=1, max=2**31)] = 50,
) -> None:
    """Seal a text and hand it to a node; prints the envelope's hash.

    The password may also be in RESTANTE_WAKU_PASSWORD.
    """
    from restante.waku import enode, keyfile
    from restante.waku.address import sealed_for
    from restante.waku.post import Letter
    from restante.waku.post import post as hand_over

    place, key = sealed_for(channel, topic, password_file, to, os.environ)
    body = sys.stdin.buffer.read() if text == "-" else text.encode()
    posted = hand_over(
        enode.parse(node), Letter(body, place, key, keyfile.load(sign) if sign is not None else None, ttl)
    )
    print(posted.envelope.hash.hex())
    if not posted.confirmed:
        print("the node never confirms; whether it took the envelope is not known", file=sys.stderr)
