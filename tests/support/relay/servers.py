"""Our transit relay in a process of its own, and the usage records that it leaves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from restante.relay.store.schema import FILE
from support.mailbox.servers import Server
from support.sqlite import select


class RestanteRelay(Server):
    main = "restante.cli.main:main"
    arguments = ("restante", "relay", "serve", "--data", "data", "--listen", "127.0.0.1:{port}", "--admin", "off")
    ready = '"event": "listening"'
    clean_exit = 0

    async def results(self) -> Counter[str]:
        """Stop the relay, which saves its usage records then, and count them by result."""
        await self.stop()
        return saved_results(self.folder / "data")

    def relayed_bytes(self) -> int:
        """Return the bytes of all usage records."""
        return sum(size for (size,) in select(self.folder / "data" / FILE, "SELECT total_bytes FROM transfers"))

    def sockets(self) -> int:
        """Count the sockets that the process has open."""
        links = Path(f"/proc/{self._process.pid}/fd").iterdir()
        return sum(link.readlink().name.startswith("socket:") for link in links)


def saved_results(data: Path) -> Counter[str]:
    """Count the usage records by result. A relay saves them every few seconds."""
    return Counter(result for (result,) in select(data / FILE, "SELECT result FROM transfers"))


def saved_state(data: Path) -> tuple[float, int]:
    """Return when a relay saved last, in wall seconds, and for how many tokens connections waited then."""
    [(updated, waiting)] = select(data / FILE, "SELECT updated, waiting FROM current") or [(0.0, 0)]
    return updated, waiting
