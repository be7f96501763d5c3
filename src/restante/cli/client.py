"""Commands of the client: `restante send`, `restante receive`."""

from __future__ import annotations

import importlib.util
import sys
from typing import Annotated

import typer

from restante.common.errors import Misuse

app = typer.Typer()

ServerOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="RESTANTE_CLIENT_SERVER",
        show_envvar=False,
        help="Mailbox server, ws:// or wss://; or RESTANTE_CLIENT_SERVER. Default: wss://relay.magic-wormhole.io/v1.",
    ),
]
ProxyOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="RESTANTE_CLIENT_PROXY",
        show_envvar=False,
        help="Proxy to connect through, http://, socks4:// or socks5://; or RESTANTE_CLIENT_PROXY.",
    ),
]
AppIdOption = Annotated[
    str | None,
    typer.Option("--appid", metavar="ID", help="Application id, if the other side uses another than `wormhole`."),
]
VerifyOption = Annotated[
    bool, typer.Option("--verify", help="Show a number to compare with the other side's, and ask before going on.")
]
CodeLengthOption = Annotated[
    int,
    typer.Option(
        "--code-length",
        "-c",
        min=1,
        max=32,
        show_default=False,
        metavar="WORDS",
        help="Words of the code. Default: 2.",
    ),
]


def _check_installed() -> None:
    """Raise Misuse if the extra is not installed."""
    if importlib.util.find_spec("nacl") is None or importlib.util.find_spec("cryptography") is None:
        raise Misuse("this command needs the extra 'client': pip install 'restante[client]'")


@app.command()
def send(
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Text to send; - reads standard input.")] = None,
    code: Annotated[
        str | None, typer.Option(metavar="CODE", help="Use this code, which the other side knows already.")
    ] = None,
    code_length: CodeLengthOption = 2,
    verify: VerifyOption = False,
    qr: Annotated[
        bool | None, typer.Option("--qr/--no-qr", help="Show the code as a QR code. Default: on a terminal.")
    ] = None,
    server: ServerOption = None,
    proxy: ProxyOption = None,
    appid: AppIdOption = None,
) -> None:
    """Send a text to another computer. Prints a code for the person there, and waits.

    The other side runs `restante receive CODE`, or `wormhole receive CODE`. Exits with 0 when the text has arrived,
    with 3 if the other side used another code, with 4 if the server cannot be used.
    """
    _check_installed()
    from restante.cli.client_run import Place, own_code, read_text, run
    from restante.cli.client_run import send as send_text

    if text is None:
        raise Misuse("say what to send: --text TEXT, or --text - for standard input")
    if text == "-" and verify:
        raise Misuse("--verify asks on standard input, and --text - reads it: give the text itself")
    place = Place.of(None, server, proxy, appid)
    chosen = None if code is None else own_code(code)
    with_qr = sys.stderr.isatty() if qr is None else qr
    run(send_text(place, read_text(text), chosen, words=code_length, verify=verify, qr=with_qr))


@app.command()
def receive(
    code: Annotated[
        str | None, typer.Argument(metavar="[CODE]", help="Code or wormhole-transfer: URI. Default: it is asked for.")
    ] = None,
    allocate: Annotated[
        bool, typer.Option("--allocate", help="Make a new code; the sender uses it with `send --code`.")
    ] = False,
    code_length: CodeLengthOption = 2,
    verify: VerifyOption = False,
    server: ServerOption = None,
    proxy: ProxyOption = None,
    appid: AppIdOption = None,
) -> None:
    """Receive a text, and print it.

    Where the code is asked for, the Tab key completes it. Exits with 0 when the text is printed, with 3 if the code
    does not work, with 4 if the server cannot be used.
    """
    _check_installed()
    from restante.cli.client_run import Place, read_code, run
    from restante.cli.client_run import receive as receive_text

    if allocate and code is not None:
        raise Misuse("--allocate makes a new code: leave the code out")
    place = Place.of(code, server, proxy, appid)
    if place.code is None and not allocate and sys.stdin.isatty():
        place = place.with_code(read_code(place, code_length))
    run(receive_text(place, allocate=allocate, words=code_length, verify=verify))
