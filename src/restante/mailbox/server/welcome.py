"""The welcome: the first message to a client."""

from __future__ import annotations

from typing import Any

import msgspec

from restante.mailbox.core.quotas import Client
from restante.mailbox.protocol import messages


class WelcomeOptions(msgspec.Struct, frozen=True):
    """The operator's settings for the welcome and the type of frames."""

    motd: str | None = None
    current_cli_version: str | None = None
    error: str | None = None
    binary: bool = False
    """Whether to send binary frames, as spec 000 says. Every shipped client expects text frames."""

    def welcome(self, client: Client, permission: dict[str, Any] | None = None) -> bytes:
        """Return the encoded welcome for a client."""
        options = {
            "motd": self.motd,
            "current_cli_version": self.current_cli_version,
            "error": self.error,
            "permission-required": permission,
        }
        welcome: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
        # The client's address as the server sees it. Clients need it for hole punching (server_websocket.py:145,
        # 0.8.0).
        welcome["your-address"] = {f"ipv{client.address.version}": str(client.address), "port": client.port}
        return messages.encode(messages.Welcome(welcome))
