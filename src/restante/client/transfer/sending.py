"""Sending a file, or a directory as an archive."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from restante.client.arguments import check_path
from restante.client.errors import TransferError, UnsendableFileError
from restante.client.files.names import offered_name_fault, quoted, quoted_path, unportable_names
from restante.client.files.walk import path_with_name
from restante.client.files.zip_stream import plan_directory, plan_paths
from restante.client.timing_log import span
from restante.client.transfer.messages import (
    ARRIVED,
    ZIP_MODE,
    DirectoryOffer,
    FileOffer,
    Offer,
    PeerMessage,
    peer_watched,
    reasons_sent,
    refusal,
    send_message,
    wait_for_answer,
)
from restante.client.transfer.stream import OnProgress, Stream
from restante.client.transit.connecting import DEFAULT_TRANSIT, Transit, TransitOptions
from restante.client.transit.hints import parse_hints, transit_message
from restante.client.transit.pipe import RECORD_BYTES
from restante.client.transit.records import PURPOSE, Role, TransitKeys
from restante.client.wormhole import Wormhole
from restante.common.dice import SystemDice
from restante.common.errors import Misuse, plain

SEVERAL: Final = "files"
"""The name of several files and directories together, if the user does not name them."""


class Outgoing(msgspec.Struct, frozen=True):
    """What is going to be sent."""

    name: str
    size: int
    """Bytes that are sent. Of a directory, those of its archive."""
    offer: Offer
    chunks: Callable[[], Iterable[bytes]]
    """Reads the bytes. Raises UnsendableFileError if they are not those that were offered."""
    left_out: tuple[str, ...] = ()
    """A sentence for each file that cannot be sent and is left out."""
    doubtful: tuple[str, ...] = ()
    """A sentence for each of the first files that a receiver on another system cannot store."""


async def send_file(
    wormhole: Wormhole,
    path: Path,
    *,
    name: str | None = None,
    transit: TransitOptions = DEFAULT_TRANSIT,
    on_progress: OnProgress | None = None,
) -> None:
    """Send a file, and wait until the receiver says that it has all of it.

    Args:
        wormhole: it has a code; it is not closed here.
        path: the file.
        name: the name that the receiver is told; by default the last part of the path.
        transit: how the two sides may be connected.
        on_progress: called with the number of bytes sent so far. If it raises an error, the transfer ends with it.

    Raises:
        Misuse: the path is not a file that can be read. A peer that is there already is told that
            there is no transfer.
        TransferError: the receiver does not want it or has other bytes, or the two sides cannot be connected.
        ConnectionLostError: the connection was lost. The text says so if the receiver may have everything.
        PeerStalledError: the receiver has not taken a byte, or has not confirmed, for too long.
        UnsendableFileError: the file changed while it was sent.
        PeerMessageError: the peer is no receiver of files.

    """
    async with _prepared(wormhole):
        outgoing = outgoing_file(path, name)
    await send_outgoing(wormhole, outgoing, transit=transit, on_progress=on_progress)


async def send_directory(
    wormhole: Wormhole,
    *paths: Path,
    name: str | None = None,
    ignore_unsendable: bool = False,
    transit: TransitOptions = DEFAULT_TRANSIT,
    on_progress: OnProgress | None = None,
) -> None:
    """Send a directory, or several files and directories in one, and wait until the receiver has all of it.

    Symbolic links are followed. Empty directories are sent, too.

    Args:
        wormhole: it has a code; it is not closed here.
        paths: a directory, or several files and directories, which arrive in one directory.
        name: the name that the receiver is told; by default the last part of the path, and `files` for several.
        ignore_unsendable: leave out what cannot be sent, instead of raising an error.
        transit: how the two sides may be connected.
        on_progress: called with the number of bytes sent so far. If it raises an error, the transfer ends with it.

    Raises:
        Misuse: there is no path, a path is neither a file nor a directory, or two have the same name. A peer that is
            there already is told that there is no transfer.
        UnsendableFileError: a file in it cannot be read, or changed while it was sent.
        TransferError: the receiver does not want it or has other bytes, or the two sides cannot be connected.
        ConnectionLostError: the connection was lost. The text says so if the receiver may have everything.
        PeerStalledError: the receiver has not taken a byte, or has not confirmed, for too long.
        PeerMessageError: the peer is no receiver of directories.

    """
    async with _prepared(wormhole):
        outgoing = await asyncio.to_thread(outgoing_directory, paths, name, ignore_unsendable=ignore_unsendable)
    await send_outgoing(wormhole, outgoing, transit=transit, on_progress=on_progress)


def _prepared(wormhole: Wormhole) -> AbstractAsyncContextManager[None]:
    """Send a peer that is there already the reason if the block ends with an error. Another one learns of none."""
    return nullcontext() if wormhole._state.peer_versions is None else reasons_sent(wormhole, Role.SENDER)


def outgoing_file(path: Path, name: str | None = None) -> Outgoing:
    """Return what is sent of a file. Raises Misuse if it is not a file that can be read."""
    check_path(path)
    try:
        with _opened(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
                raise Misuse(f"{quoted_path(str(path))} is not a file")
            size = file.seek(0, 2)
    except OSError as error:
        raise Misuse(f"cannot read {quoted_path(str(path))}: {plain(error)}") from error
    name = _sendable(name or path.absolute().name)
    offer = Offer(file=FileOffer(name, size))
    return Outgoing(name, size, offer, lambda: _chunks(path, size), doubtful=_doubtful(name))


def outgoing_stream(file: BinaryIO, name: str) -> Outgoing:
    """Return what is sent of a file that is open and has no name. Raises UnsendableFileError."""
    size = file.seek(0, 2)
    name = _sendable(name)

    def chunks() -> Iterator[bytes]:
        try:
            file.seek(0)
            while chunk := file.read(RECORD_BYTES):
                yield chunk
        except OSError as error:
            raise UnsendableFileError(f"cannot read {quoted(name)}: {plain(error)}") from error

    return Outgoing(name, size, Offer(file=FileOffer(name, size)), chunks, doubtful=_doubtful(name))


def outgoing_directory(
    paths: tuple[Path, ...], name: str | None = None, *, ignore_unsendable: bool = False
) -> Outgoing:
    """Return what is sent of a directory, or of several paths. Raises Misuse, UnsendableFileError."""
    if not paths:
        raise Misuse("there is nothing to send: name a directory, or several files and directories")
    for path in paths:
        check_path(path)
        if not os.path.exists(path):  # noqa: PTH110 - Path's raises an error for a name that is too long
            raise Misuse(f"there is no file or directory {quoted_path(str(path))}")
    if len(paths) == 1:
        if not paths[0].is_dir():
            raise Misuse(f"{quoted_path(str(paths[0]))} is not a directory")
        plan = plan_directory(paths[0], ignore_unsendable=ignore_unsendable)
        name = name or path_with_name(paths[0]).name or SEVERAL
    else:
        plan = plan_paths(paths, ignore_unsendable=ignore_unsendable)
        name = name or SEVERAL
    name = _sendable(name)
    directory = DirectoryOffer(
        ZIP_MODE, name, plan.size, plan.number_of_bytes, plan.number_of_files, plan.number_of_directories
    )
    doubtful = (*_doubtful(name), *plan.doubtful)
    return Outgoing(name, plan.size, Offer(directory=directory), plan.chunks, tuple(plan.left_out), doubtful)


async def send_outgoing(
    wormhole: Wormhole,
    outgoing: Outgoing,
    *,
    transit: TransitOptions = DEFAULT_TRANSIT,
    on_progress: OnProgress | None = None,
) -> None:
    """Send what was prepared. Raises what `send_file` and `send_directory` do."""
    async with reasons_sent(wormhole, Role.SENDER):
        keys = TransitKeys.derive(await wormhole.derive_key(PURPOSE), Role.SENDER)
        with Transit(transit, SystemDice()) as listening:
            await send_message(wormhole, PeerMessage(transit=transit_message(listening.hints)))
            await send_message(wormhole, PeerMessage(offer=outgoing.offer))
            with wormhole._expecting("answer"):
                answer, peer_transit = await wait_for_answer(wormhole)
            if answer.file_ack != ARRIVED:
                raise TransferError(f"the receiver refused it: {refusal(answer.file_ack)}")
            with peer_watched(wormhole) as given_up:
                seconds = transit.connect_seconds
                with span(wormhole.timing, "transit connect"), wormhole._expecting("connection", seconds):
                    pipe = await listening.connect(keys, Role.SENDER, parse_hints(peer_transit), given_up)
                directories = 0 if outgoing.offer.directory is None else outgoing.offer.directory.numdirs or 0
                stream = Stream(pipe, Role.SENDER, outgoing.size, wormhole, on_progress, directories)
                await stream.run(lambda: stream.send(outgoing.chunks()), given_up)


def _doubtful(name: str) -> tuple[str, ...]:
    return tuple(f"{quoted(name)}: its name {fault}" for _, fault in unportable_names([name]))


def _sendable(name: str) -> str:
    """Return a name that may be offered. Raises UnsendableFileError: no receiver could store another."""
    if fault := offered_name_fault(name):
        raise UnsendableFileError(f"cannot send {quoted(name)}: its name {fault}")
    return name


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    """Yield what is in a file. Raises UnsendableFileError, before the last bytes, if its size or content changes."""
    try:
        with _opened(path) as file:
            modified = os.fstat(file.fileno()).st_mtime_ns
            remaining = size
            while remaining:
                chunk = file.read(min(RECORD_BYTES, remaining))
                if not chunk:
                    raise UnsendableFileError(f"{quoted(path.name)} became shorter while it was sent: send it again")
                remaining -= len(chunk)
                if not remaining and file.read(1):
                    raise UnsendableFileError(f"{quoted(path.name)} became longer while it was sent: send it again")
                if not remaining and os.fstat(file.fileno()).st_mtime_ns != modified:
                    raise UnsendableFileError(f"{quoted(path.name)} changed while it was sent: send it again")
                yield chunk
    except OSError as error:
        raise UnsendableFileError(f"cannot read {quoted(path.name)}: {plain(error)}") from error


def _opened(path: Path) -> FileIO:
    # Without O_NONBLOCK a named pipe would wait for a writer (open(2)).
    return FileIO(path, opener=lambda name, _: os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
