"""What the system says, in plain words."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from restante.common.errors import plain


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(111, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (ConnectionResetError(104, "x"), "Connection reset by peer"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (
            OSError("Multiple exceptions: [Errno 111] a ('::1', 1), [Errno 111] b, [Errno 113] c"),
            "Connection refused, No route to host",
        ),
        (OSError("could not bind"), "could not bind"),
    ],
)
def test_a_system_error_is_reported_in_its_words_alone(error: OSError, words: str) -> None:
    assert plain(error) == words


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_refused_connection_is_reported_in_plain_words(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def call() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and does not listen
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, *taken.getsockname())

    with asyncio.Runner(loop_factory=new_loop) as runner, pytest.raises(OSError) as refused:
        runner.run(call())
    assert plain(refused.value) == "Connection refused"
