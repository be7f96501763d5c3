"""The public names of the client library: what their import loads, and the reference that describes them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from client import reference
from restante import client
from restante.client import Journal, JournaledWormhole, Wormhole
from support.bounds import bounded
from support.mailbox.live import LiveServer
from support.processes import loaded_by

BEFORE_A_CONNECTION = {"picows", "python_socks", "aiohttp", "typer", "structlog", "uvloop", "twisted", "segno"}
"""Packages that no program needs before its first connection, or at all."""


def test_the_import_loads_names_when_they_are_used_and_nothing_that_only_a_connection_needs() -> None:
    first, last = loaded_by("restante.client")
    ours = {name for name in first if name.startswith("restante.")}
    assert ours == {"restante.client", "restante.common", "restante.common.lazy_names"}
    assert not BEFORE_A_CONNECTION & last


@pytest.mark.thorough
def test_the_document_describes_every_public_name_once_as_its_docstring_does() -> None:
    page = reference.reference()
    assert reference.PATH.read_text() == page, f"it is out of date: {reference.__doc__}"
    described = [name for name in reference.described(page) if name in client.__all__]
    assert sorted([*described, "Event"]) == sorted(client.__all__)


async def test_the_example_of_a_journal_exchanges_messages(server: LiveServer, tmp_path: Path) -> None:
    class JournalAtServer(Journal[Any]):
        def __init__(self, path: Path, initial: Any) -> None:
            super().__init__(tmp_path / path, initial)

        def wormhole(self, name: str, app_id: str, **options: Any) -> JournaledWormhole:
            return super().wormhole(name, app_id, server=server.url, **options)

    [example] = re.findall(r"(?:^ {4}.*\n)+", f"{inspect.getdoc(Journal)}\n", re.MULTILINE)
    names: dict[str, Any] = {"Path": Path, "Journal": JournalAtServer}
    exec(f"async def run():\n{example}    return journal.state['entries']", names)
    async with bounded("the entry"), Wormhole.create("example.com/contacts", server=server.url) as bob:
        await bob.set_code("7-your-code")
        await bob.send(b"an entry")
        while await names["run"]() != ["an entry"]:
            pass
        assert await bob.receive() == b"thank you"
    assert await names["run"]() == ["an entry"]
