"""Silent clients over TLS, which answer the server's pings and do nothing else.

    python -m support.mailbox.pinged CERTIFICATE PORT...

It binds on a connection to each port, and prints a line for each ping.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from typing import Final

from support.mailbox.raw_socket import PING, PONG, RawSocket, frame, handshake

LINE: Final = "port {port}: pings {pings}"


async def stay(port: int, context: ssl.SSLContext) -> None:
    """Bind, and answer pings until this process is killed."""
    socket = RawSocket(*await asyncio.open_connection("localhost", port, ssl=context))
    socket.write(handshake(host=f"localhost:{port}"))
    await socket.reader.readuntil(b"\r\n\r\n")
    socket.say(type="bind", appid="idle", side="one")
    pings = 0
    while True:
        opcode, payload = await socket.read()
        if opcode == PING:
            socket.write(frame(PONG, payload))
            pings += 1
            print(LINE.format(port=port, pings=pings), flush=True)  # noqa: T201 - the test waits for it


async def main(certificate: str, *ports: str) -> None:
    """Stay connected to all ports. The program ends if one connection ends."""
    context = ssl.create_default_context(cafile=certificate)
    async with asyncio.TaskGroup() as group:
        for port in ports:
            group.create_task(stay(int(port), context))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
