"""The file of a journal: the application's state and its wormholes, in one JSON document."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import msgspec

from restante.client.core.state import WormholeState
from restante.client.tasks import until_done
from restante.common.atomic_file import draft_of
from restante.common.errors import InUse, RestanteError, StoreError, plain
from restante.common.lock_file import lock_file

FORMAT: Final = "restante journal"
FORMAT_VERSION: Final = 1

MAX_CHECKPOINT_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a journal's file. It is written whole by each step, so that a useful one is far smaller."""


class CheckpointError(RestanteError):
    """A file is not a checkpoint of this application that this version can read. It was not changed."""


class SavedWormhole(msgspec.Struct):
    """A wormhole in a checkpoint."""

    server: str
    state: WormholeState


class Checkpoint(msgspec.Struct, kw_only=True):
    """All that a journal keeps."""

    format: str = FORMAT
    version: int = FORMAT_VERSION
    application: msgspec.Raw
    """The application's state."""
    wormholes: dict[str, SavedWormhole] = {}


class _Header(msgspec.Struct):
    format: str
    version: int


class CheckpointFile:
    """The file, locked for this process."""

    def __init__(self, path: Path) -> None:
        """Lock the file, which need not exist. Raises InUse if another has locked it, StoreError."""
        self.path = path
        lock = path.with_name(path.name + ".lock")
        try:
            self._lock = lock_file(lock)
        except BlockingIOError:
            reason = (
                f"the journal {path} is in use, by another process or a Journal that is not closed: close that first"
            )
            raise InUse(reason) from None
        except OSError as error:
            raise StoreError(f"cannot use the journal {path}: {plain(error)}") from None
        self._written = b""

    def close(self) -> None:
        """Release the lock. The file cannot be written any more."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def read(self) -> Checkpoint | None:
        """Return the checkpoint, or None if there is no file.

        Raises:
            CheckpointError: the file is truncated, of a later version, or something else.
            StoreError: it cannot be read.

        """
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_CHECKPOINT_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read the journal {self.path}: {plain(error)}") from None
        if len(content) > MAX_CHECKPOINT_BYTES:
            raise CheckpointError(f"{self.path} has more than {MAX_CHECKPOINT_BYTES} bytes: no journal has as many")
        checkpoint = _decode_checkpoint(content, self.path)
        self._written = content
        return checkpoint

    def write(self, content: bytes) -> None:
        """Replace the checkpoint, and return when it is on disk. Raises StoreError; then the old one is there."""
        if content == self._written:
            return
        if self._lock < 0:
            raise StoreError(f"the journal {self.path} is closed: open it again")
        if os.fstat(self._lock).st_nlink == 0:
            raise StoreError(
                f"the journal {self.path} or its lock was removed, and another process may use it: start again"
            )
        if len(content) > MAX_CHECKPOINT_BYTES:
            limit = f"{MAX_CHECKPOINT_BYTES} bytes"
            raise StoreError(f"the journal {self.path} would have more than {limit}: close some wormholes")
        try:
            with draft_of(self.path, locked=True) as draft:
                draft.write_bytes(content)
        except OSError as error:
            raise StoreError(f"cannot write the journal {self.path}: {plain(error)}") from None
        self._written = content


def _decode_checkpoint(content: bytes, path: Path) -> Checkpoint:
    try:
        header = _decode_header(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CheckpointError(f"{path} is not a journal, or only a part of one: restore it from a backup") from None
    if header.format != FORMAT:
        raise CheckpointError(f"{path} was written by another program: name another file")
    if header.version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has version {header.version} of the format, and this program reads {FORMAT_VERSION}"
        )
    try:
        checkpoint = _decode_body(content)
        for saved in checkpoint.wormholes.values():
            saved.state.check()
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise CheckpointError(f"{path} is a damaged journal ({error}): restore it from a backup") from None
    return checkpoint


_decode_header: Final = msgspec.json.Decoder(_Header).decode
_decode_body: Final = msgspec.json.Decoder(Checkpoint).decode


class CheckpointWriter:
    """Writes checkpoints, one at a time. Calls that come while one is written share the next one."""

    def __init__(self, file: CheckpointFile, checkpoint: Checkpoint) -> None:
        """Write to a file. The checkpoint changes between two writes."""
        self._file, self._checkpoint = file, checkpoint
        self._writing = asyncio.Lock()
        self._requested = self._saved = 0
        self._broken: StoreError | None = None

    async def save(self) -> None:
        """Return when all that has happened so far is on disk. Raises StoreError, and then at each later call."""
        self._requested += 1
        await until_done(asyncio.ensure_future(self._save(self._requested)))

    def check(self) -> None:
        """Raise the StoreError of an earlier call."""
        if self._broken is not None:
            raise self._broken

    async def _save(self, number: int) -> None:
        async with self._writing:
            self.check()
            if self._saved >= number:
                return  # a later call has been saved, and this one with it
            requested, content = self._requested, _encode(self._checkpoint)
            try:
                await asyncio.to_thread(self._file.write, content)
            except StoreError as error:
                self._broken = error
                raise
            self._saved = requested


_encode = msgspec.json.Encoder(order="deterministic").encode
