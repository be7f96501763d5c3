"""The welcome: what a client is told first."""

from __future__ import annotations

from typing import Any

import msgspec

from restante.mailbox.core.addresses import Client
from restante.mailbox.protocol import messages


class WelcomeOptions(msgspec.Struct, frozen=True):
    """How the server greets and speaks."""

    motd: str | None = None
    current_cli_version: str | None = None
    error: str | None = None
    binary: bool = False
    """Send binary frames, as the letter of spec 000 has it; every shipped client was built against text."""

    def welcome(self, client: Client, permission: dict[str, Any] | None = None) -> bytes:
        """Encode the welcome for a client."""
        said = {
            "motd": self.motd,
            "current_cli_version": self.current_cli_version,
            "error": self.error,
            "permission-required": permission,
        }
        welcome: dict[str, Any] = {key: value for key, value in said.items() if value is not None}
        # How it looks from here: hole-punching needs it (server_websocket.py:145, 0.8.0).
        welcome["your-address"] = {f"ipv{client.address.version}": str(client.address), "port": client.port}
        return messages.encode(messages.Welcome(welcome))
