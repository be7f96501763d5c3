"""A server in memory for all transfers, and a folder to store things in."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.live import Network


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> Iterator[None]:
    """Each transfer ends with a search for what is still open: spare it all that was imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _server(network: Network) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.client.transfer.messages.REASON_SECONDS", 0.05)
