"""Receiving what the other side offers: a text, a file or a directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from restante.client.arguments import check_path
from restante.client.errors import PeerMessageError, UnsafeNameError
from restante.client.files.draft import (
    check_free_space,
    check_target,
    check_writable,
    draft_directory,
    draft_file,
    scratch_file,
)
from restante.client.files.names import file_name, quoted
from restante.client.files.unpacking import ArchiveLimits, unpack
from restante.client.tasks import in_thread
from restante.client.timing_log import span
from restante.client.transfer.messages import (
    ARRIVED,
    ZIP,
    Answer,
    DirectoryOffer,
    FileOffer,
    PeerMessage,
    abandon_transfer,
    peer_watched,
    reasons_sent,
    send_message,
    wait_for_offer,
)
from restante.client.transfer.stream import OnProgress, Stream
from restante.client.transit.connecting import DEFAULT_TRANSIT, Transit, TransitOptions
from restante.client.transit.hints import Hints, parse_hints, transit_message
from restante.client.transit.records import PURPOSE, Role, TransitKeys
from restante.client.wormhole import Wormhole
from restante.common.dice import SystemDice
from restante.common.errors import Misuse

REJECTED: Final = "transfer rejected"
"""What shipped clients say if the receiver does not want it (mw cli/cmd_receive.py:31)."""


TAR: Final = ".tar"
"""How the name of a directory ends that magic-wormhole.rs sends (rs transfer/v1.rs:280-341)."""

TAR_BLOCK_BYTES: Final = 512
"""Bytes of a tar file for each file in it, at least (POSIX, pax)."""

MAX_UNCOUNTED_DIRECTORIES: Final = 1000
"""How many more directories than files are stored, if the sender does not say how many there are. Clients of other
projects do not, and a million empty directories would be offered as 0 files of 0 bytes."""

DIRECTORY_BYTES: Final = 4096
"""What a directory takes of a disk: a block of ext4 and of most other file systems."""


class _Offered:
    """What the sender offers, until it is accepted or rejected, once."""

    def __init__(self, wormhole: Wormhole) -> None:
        self.wormhole = wormhole
        self._answered = False

    async def reject(self, reason: str = REJECTED) -> None:
        """Reject the offer. The sender's user sees the reason. Raises Misuse if it was accepted or rejected."""
        self._answer()
        await abandon_transfer(self.wormhole, reason)

    def _answer(self) -> None:
        """Note that the offer is answered: the sender waits for one answer. Raises Misuse if it was before."""
        if self._answered:
            raise Misuse("an offer is accepted or rejected once, and this one was before: meet in another wormhole")
        self._answered = True


class _OfferedArchive(NamedTuple):
    """An archive that is offered."""

    size: int
    limits: ArchiveLimits
    directories: int | None
    """How many directories the sender offers. None: it does not say, and they are counted in the archive."""


class _OfferedBytes(_Offered):
    """A file or a directory."""

    offered_name: str

    def __init__(self, wormhole: Wormhole, peer_hints: Hints, transit: TransitOptions) -> None:
        super().__init__(wormhole)
        self._peer_hints, self._transit = peer_hints, transit

    @property
    def name(self) -> str:
        """Its name, which is safe to use in any directory.

        Raises UnsafeNameError if it is not. This happens only if `receive` was called with `any_name`.
        """
        return file_name(self.offered_name)

    @property
    def hints(self) -> Hints:
        """Where the sender says that it can be reached: `direct` addresses, and `relays`."""
        return self._peer_hints

    async def _run(
        self,
        size: int,
        check: Callable[[], None],
        store: Callable[[Stream], None],
        on_progress: OnProgress | None,
        remainder: str = "nothing was kept",
    ) -> None:
        """Check that it can be stored, accept the offer, connect, and store what comes."""
        wormhole = self.wormhole
        async with reasons_sent(wormhole, Role.RECEIVER):
            check()
            keys = TransitKeys.derive(await wormhole.derive_key(PURPOSE), Role.RECEIVER)
            with Transit(self._transit, SystemDice()) as transit:
                await send_message(wormhole, PeerMessage(transit=transit_message(transit.hints)))
                await send_message(wormhole, PeerMessage(answer=Answer(file_ack=ARRIVED)))
                with peer_watched(wormhole) as given_up:
                    seconds = self._transit.connect_seconds
                    with span(wormhole.timing, "transit connect"), wormhole._expecting("connection", seconds):
                        pipe = await transit.connect(keys, Role.RECEIVER, self.hints, given_up)
                    stream = Stream(pipe, Role.RECEIVER, size, wormhole, on_progress, remainder=remainder)

                    def receive() -> None:
                        store(stream)
                        stream.acknowledge()

                    await stream.run(receive, given_up)

    async def _run_archive(
        self,
        archive: _OfferedArchive,
        path: Path,
        replace: bool,
        rename: bool,
        on_progress: OnProgress | None,
        on_unpack: OnProgress | None,
    ) -> Path:
        """Do the same with an archive, and store what is in it as a directory. Return where."""
        stored, removals = list[Path](), list[Callable[[], None]]()

        def check() -> None:
            _check_storable(path, replace=replace, rename=rename, directory=True)
            files = archive.limits.files if archive.limits.top is None else 0  # of a tar file, they are counted later
            check_unpacked(files, archive.directories or 0, archive.size)

        def check_unpacked(files: int, directories: int, archive_size: int = 0) -> None:
            size = archive.limits.size + directories * DIRECTORY_BYTES + archive_size
            check_free_space(path.parent, size, files + directories)

        def store(stream: Stream) -> None:
            drafted = draft_directory(
                path,
                replace=replace,
                rename=rename,
                before_naming=stream.check,
                on_named=stored.append,
                on_error=removals.append,
            )
            with scratch_file(path.parent) as received, drafted as draft:
                stream.receive(received.write)
                with span(self.wormhole.timing, "unpack zip"), stream.counting(on_unpack) as count:
                    check_counts = check_unpacked if archive.directories is None else None
                    unpack(received.file, draft, archive.limits, count, check_counts)

        try:
            await self._run(archive.size, check, store, on_progress)
        finally:  # the sender knows by now
            for remove in removals:
                await in_thread(remove, lambda: None)
        return stored[0]


class OfferedText(_Offered):
    """A text of the sender. It has come with the offer."""

    def __init__(self, wormhole: Wormhole, text: str) -> None:
        super().__init__(wormhole)
        self.text: str = text
        """The text. It may contain anything, also control characters for a terminal."""

    async def accept(self) -> None:
        """Accept the text: the sender is told that it has arrived. Raises Misuse as `reject` does."""
        self._answer()
        await send_message(self.wormhole, PeerMessage(answer=Answer(message_ack=ARRIVED)))


class OfferedFile(_OfferedBytes):
    """A file that the sender offers. Nothing of it is transferred before it is accepted."""

    def __init__(self, wormhole: Wormhole, offer: FileOffer, peer_hints: Hints, transit: TransitOptions) -> None:
        super().__init__(wormhole, peer_hints, transit)
        self.offered_name: str = offer.filename
        """What the sender calls it. It may contain anything, also what steers a terminal or leads elsewhere."""
        self.directory_name: str | None = _directory_name(offer.filename)
        """The name of the directory in a tar file `NAME.tar`: `NAME`, checked as `name` is. magic-wormhole.rs sends
        directories as such files. None for any other file."""
        self.size: int = offer.filesize
        """The file's size in bytes."""

    async def accept(
        self, path: Path, *, replace: bool = False, rename: bool = False, on_progress: OnProgress | None = None
    ) -> Path:
        """Receive the file, and store it at a path. Until all of it is on disk, nothing has this path.

        After an error nothing is kept. If the connection is lost after everything is stored, there is no error.
        Returns where it is stored: another path only with `rename`.

        Args:
            path: where the file is stored. The directory of this path exists.
            replace: whether a file at this path may be replaced.
            rename: whether it is stored with a number, like `name (1).txt`, if something has this path.
            on_progress: called with the number of bytes received so far. If it raises an error, the transfer ends
                with it.

        Raises:
            Misuse: the path does not end with a name; something is at it that may not be replaced, or that never is;
                or the offer was accepted or rejected before.
            StoreError: the file cannot be stored. The sender is told.
            TransferError: the sender gave up, or the two sides cannot be connected.
            ConnectionLostError: the connection was lost.
            PeerStalledError: the sender has not sent a byte for too long.
            PeerMessageError: the sender did not send what it offered.

        """
        check_path(path)
        self._answer()

        stored: list[Path] = []

        def store(stream: Stream) -> None:
            drafted = draft_file(
                path, replace=replace, rename=rename, before_naming=stream.check, on_named=stored.append
            )
            with drafted as draft:
                stream.receive(draft.write)

        def check() -> None:
            _check_storable(path, replace=replace, rename=rename, directory=False)
            check_free_space(path.parent, self.size)

        await self._run(self.size, check, store, on_progress)
        return stored[0]

    async def _write_to(
        self, write: Callable[[memoryview, Callable[[], None]], None], on_progress: OnProgress | None = None
    ) -> None:
        """Receive the file, and call a function in a thread with its bytes.

        It is also given what to call while the bytes cannot be written, which raises an error if the transfer ends.
        """
        self._answer()

        def store(stream: Stream) -> None:
            stream.receive(lambda data: write(data, stream.check))

        await self._run(self.size, lambda: None, store, on_progress, remainder="a part of it was written")

    async def unpack(
        self,
        path: Path,
        *,
        replace: bool = False,
        rename: bool = False,
        on_progress: OnProgress | None = None,
        on_unpack: OnProgress | None = None,
    ) -> Path:
        """Receive a tar file, and store its contents as a directory. magic-wormhole.rs sends directories as such.

        The arguments and errors are those of `OfferedDirectory.accept`. It also raises Misuse if the file has no
        `directory_name`.
        """
        check_path(path)
        self._answer()
        if self.directory_name is None:
            reason = f"{quoted(self.offered_name)} is not named like a directory's tar file"
            async with reasons_sent(self.wormhole, Role.RECEIVER):
                raise Misuse(f"{reason}: call accept if directory_name is None").with_peer_text(reason)
        members = self.size // TAR_BLOCK_BYTES
        archive = _OfferedArchive(self.size, ArchiveLimits(members, members, self.size, self.directory_name), None)
        return await self._run_archive(archive, path, replace, rename, on_progress, on_unpack)


def _check_storable(path: Path, *, replace: bool, rename: bool, directory: bool) -> None:
    """Raise Misuse or StoreError if nothing can be stored at a path."""
    if replace and rename:
        raise Misuse("replace and rename say what to do if the path exists: set one of them")
    check_target(path, replace=replace, rename=rename, directory=directory)
    check_writable(path.parent)


def _directory_name(name: str) -> str | None:
    """Return the name of the directory that a tar file contains. What is left of `.tar` and `..tar` is no name."""
    try:
        return file_name(name.removesuffix(TAR)) if name.endswith(TAR) else None
    except UnsafeNameError:
        return None


class OfferedDirectory(_OfferedBytes):
    """A directory that the sender offers. It comes as an archive, and nothing of it before it is accepted."""

    def __init__(self, wormhole: Wormhole, offer: DirectoryOffer, peer_hints: Hints, transit: TransitOptions) -> None:
        super().__init__(wormhole, peer_hints, transit)
        self.offered_name: str = offer.dirname
        """What the sender calls it. It may contain anything, also what steers a terminal or leads elsewhere."""
        self.archive_size: int = offer.zipsize
        """The size of the archive in bytes: what is received."""
        self.size: int = offer.numbytes
        """The size of all files together in bytes."""
        self.files: int = offer.numfiles
        """The number of files."""
        self.directories: int | None = offer.numdirs
        """The number of directories in it. None: the sender does not say it, as clients of other projects."""

    async def accept(
        self,
        path: Path,
        *,
        replace: bool = False,
        rename: bool = False,
        on_progress: OnProgress | None = None,
        on_unpack: OnProgress | None = None,
    ) -> Path:
        """Receive the directory, and store it at a path. Until all of it is on disk, nothing has this path.

        After an error nothing is kept. If the connection is lost after everything is stored, there is no error.
        Returns where it is stored: another path only with `rename`.

        Args:
            path: where the directory is stored. The directory of this path exists.
            replace: whether a file or directory at this path may be replaced.
            rename: whether it is stored with a number, like `name (1)`, if something has this path.
            on_progress: called with the number of bytes of the archive received so far. If it raises an error, the
                transfer ends with it.
            on_unpack: called with the number of bytes unpacked so far, in the same way.

        Raises:
            Misuse: the path does not end with a name; something is at it that may not be replaced, or that never is;
                or the offer was accepted or rejected before.
            StoreError: the directory cannot be stored. The sender is told.
            TransferError: the sender gave up, or the two sides cannot be connected.
            ConnectionLostError: the connection was lost.
            PeerStalledError: the sender has not sent a byte for too long.
            PeerMessageError: the sender did not send what it offered.
            ArchiveError: the archive is broken, has more than was offered, or has links or devices.
            UnsafeNameError: the archive has a name that cannot be used.

        """
        check_path(path)
        self._answer()
        directories = self.directories
        max_directories = self.files + MAX_UNCOUNTED_DIRECTORIES if directories is None else directories
        archive = _OfferedArchive(
            self.archive_size, ArchiveLimits(self.files, max_directories, self.size), directories
        )
        return await self._run_archive(archive, path, replace, rename, on_progress, on_unpack)


async def receive(
    wormhole: Wormhole, transit: TransitOptions = DEFAULT_TRANSIT, *, any_name: bool = False
) -> OfferedText | OfferedFile | OfferedDirectory:
    """Wait until the sender offers something. Call `accept` or `reject` of what is returned.

    Args:
        wormhole: it has a code; it is not closed here.
        transit: how the two sides may be connected, if a file or a directory is accepted.
        any_name: whether an offer with an unsafe name is returned. Its `offered_name` may be shown with care, and its
            `name` raises UnsafeNameError.

    Raises:
        TransferError: the sender gave up. The words are the sender's.
        PeerMessageError: the peer is no sender, or offers something else.
        UnsafeNameError: the name of what it offers cannot be used, and `any_name` is not set. The sender is told.

    """
    async with reasons_sent(wormhole, Role.RECEIVER):
        with wormhole._expecting("offer"):
            offer, peer_transit = await wait_for_offer(wormhole)
        if [offer.message, offer.file, offer.directory].count(None) != 2:
            raise PeerMessageError("the sender does not offer one text, one file or one directory")
        if offer.message is not None:
            return OfferedText(wormhole, offer.message)
        peer_hints = parse_hints(peer_transit)
        offered: OfferedFile | OfferedDirectory
        if offer.file is not None:
            offered = OfferedFile(wormhole, offer.file, peer_hints, transit)
        elif offer.directory is not None and offer.directory.mode.startswith(ZIP):
            offered = OfferedDirectory(wormhole, offer.directory, peer_hints, transit)
        else:
            raise PeerMessageError("the sender offers something that this program cannot receive")
        if not any_name:
            file_name(offered.offered_name)
        return offered
