"""Files and directories on the command line: what is asked and shown, and where things are stored."""

from __future__ import annotations

import asyncio
import codecs
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import PIPE_BUF, select
from tempfile import gettempdir
from typing import Final

import msgspec
from rich.filesize import decimal

from restante.client.errors import WormholeError
from restante.client.files.draft import (
    EXISTS,
    abandoned_drafts,
    check_target,
    check_writable,
    free_path,
    is_special,
    remove_abandoned_draft,
    scratch_file,
)
from restante.client.files.names import offered_name_fault, quoted, quoted_path
from restante.client.timing_log import USER, span
from restante.client.transfer.messages import reasons_sent, unless_given_up
from restante.client.transfer.receiving import OfferedDirectory, OfferedFile, OfferedText
from restante.client.transfer.sending import (
    Outgoing,
    outgoing_directory,
    outgoing_file,
    outgoing_stream,
    send_outgoing,
)
from restante.client.transit.connecting import Transit, TransitOptions
from restante.client.transit.hints import Hints
from restante.client.transit.records import Role
from restante.client.wormhole import Wormhole
from restante.common.dice import SystemDice
from restante.common.errors import Misuse, StoreError, plain
from restante.common.terminal import Declined, answered_yes, can_rewrite, say
from restante.common.texts import counted, visible

FIGURES_COLUMNS: Final = 45
"""How wide the size, rate and time left are, at most."""

BAR_COLUMNS: Final = 60
"""How wide a terminal is on which a bar is drawn beside them."""

MAX_BAR_COLUMNS: Final = 40

MAX_DRAFTS_SHOWN: Final = 3
"""How many abandoned drafts are named."""

READ_BYTES: Final = 256 << 10
"""How much is read of standard input at once."""

WAIT_SECONDS: Final = 0.2
"""Seconds after which a write to a pipe that nobody reads looks whether the transfer has to end."""


class StoreOptions(msgspec.Struct, frozen=True):
    """Where a received file or directory is stored, and what the user is asked."""

    output: Path | None = None
    """A directory to store it in, or what it is called here. None: its name, in the working directory."""
    into_output: bool = False
    """Whether `output` was a directory when the command began. It may have gone since, and come back later."""
    accept: bool = False
    """Whether the user is asked nothing."""
    replace: bool = False
    rename: bool = False
    """Whether it gets a number, if something has its name."""
    unpack: bool = False
    """Whether tar files become directories."""
    dry_run: bool = False
    """Whether the offer is shown, and nothing received."""
    to_standard_output: bool = False
    """Whether a file is written there, and not stored."""
    transit: TransitOptions = TransitOptions()
    timing_log: Path | None = None
    """Where the timing log is written at the end."""

    def path(self, offered: OfferedFile | OfferedDirectory, directory_name: str | None = None) -> Path:
        """Return where something is stored. Raises UnsafeNameError if its own name is needed, and cannot be used."""
        if self.output is None:
            return Path(directory_name or offered.name)
        is_directory = os.path.isdir(self.output)  # noqa: PTH112 - Path's raises an error for a long name
        return self.output / (directory_name or offered.name) if self.into_output or is_directory else self.output

    def is_replaced_by_log(self, path: Path) -> bool:
        """Return whether the timing log would be written over what is stored at a path, or into it."""
        with suppress(OSError):  # the working directory was removed
            log = self.timing_log
            return log is not None and Path(os.path.realpath(log)).is_relative_to(os.path.realpath(path))
        return False


def transit_options(relay: str, *, listen: bool, port: int, proxy: str | None) -> TransitOptions:
    """Return how the sides may be connected. An empty relay is none. Raises Misuse, also if the port is not free."""
    if port and not (listen and proxy is None):
        raise Misuse("--port is where this computer listens: leave out --port, or --no-listen and --proxy")
    options = TransitOptions((relay,) if relay else (), listen, proxy, port=port)
    if port:
        with Transit(options, SystemDice()):
            pass
    return options


def output_path(output: str | None, *, may_be_file: bool) -> Path | None:
    """Return where to store what comes. Raises Misuse, before a code is used up, if nothing can be stored there.

    `may_be_file` says whether it may be a file that is there already.
    """
    if output is None:
        return None
    if not output:
        raise Misuse("the path of --output is empty: name a directory or a file, or leave the option out")
    folder, _, name = output.rpartition("/")
    directory = output if name in {"", ".", ".."} else folder or ("/" if output.startswith("/") else ".")
    if not os.path.isdir(directory):  # noqa: PTH112 - Path's raises an error for a long name
        raise Misuse(f"there is no directory {quoted_path(directory)}: create it first")
    try:
        check_writable(Path(output if os.path.isdir(output) else directory))  # noqa: PTH112 - as above
    except StoreError as error:
        raise Misuse(str(error)) from error
    try:
        is_file = not stat.S_ISDIR(os.stat(output).st_mode)  # noqa: PTH116 - of a text that may end with a slash
    except FileNotFoundError:
        is_file = os.path.lexists(output)  # a link to nothing
    except OSError as error:
        raise Misuse(f"cannot store it as {quoted_path(output)}: {plain(error)}") from error
    path = Path(output)
    if is_file and not may_be_file:
        raise Misuse(exists_message(path))
    if is_special(path):
        reason = "leads to a device, a pipe or a socket: name a directory or a file, or - for standard output"
        raise Misuse(f"{quoted_path(output)} {reason}")
    return path


def exists_message(path: Path) -> str:
    """Return what is said if something has the path, and the user is not asked."""
    ways = "--replace replaces it, --rename adds a number, --output names another place"
    return f"{visible(str(path))} exists already: {ways}"


def sent_paths(arguments: list[str]) -> list[Path]:
    """Return the paths on the command line. Raises Misuse if one is empty, as an unset variable of a script is."""
    if "" in arguments:
        raise Misuse("a PATH is empty: name a file or a directory, or . for the working directory")
    return [Path(argument) for argument in arguments]


def check_name(name: str | None) -> None:
    """Raise Misuse if `--name` gives a name that no receiver could store."""
    if name is not None and (fault := offered_name_fault(name)):
        raise Misuse(f"the name {quoted(name)} {fault}: give another --name")


@contextmanager
def outgoing_input(name: str | None) -> Iterator[Outgoing]:
    """Read standard input into a file without a name, and yield what is sent of it. Raises Misuse, StoreError."""
    if name is None:
        raise Misuse("standard input has no name: add --name NAME, under which the receiver stores it")
    if sys.stdin is None:
        raise Misuse("standard input is closed: name a file")
    if sys.stdin.isatty():
        say("Reading what to send from the terminal; Ctrl-D ends it.")
    try:
        folder = Path(gettempdir())
    except FileNotFoundError as error:
        reason = "no directory for temporary files can be written in: set $TMPDIR to one, or send a file"
        raise StoreError(reason) from error
    with scratch_file(folder) as draft:
        try:
            while data := os.read(sys.stdin.fileno(), READ_BYTES):
                draft.write(data)
        except OSError as error:
            raise Misuse(f"cannot read standard input: {plain(error)}") from error
        outgoing = outgoing_stream(draft.file, name)
        _show_warnings(outgoing)
        yield outgoing


def outgoing(paths: list[Path], name: str | None = None, *, ignore_unsendable: bool) -> Outgoing:
    """Return what is sent of the paths on the command line. Raises Misuse, UnsendableFileError."""
    if len(paths) == 1 and not os.path.isdir(paths[0]):  # noqa: PTH112 - Path's raises an error for a long name
        outgoing = outgoing_file(paths[0], name)
    else:
        outgoing = outgoing_directory(tuple(paths), name, ignore_unsendable=ignore_unsendable)
    _show_warnings(outgoing)
    return outgoing


def _show_warnings(outgoing: Outgoing) -> None:
    """Say which names other systems cannot store, and what is left out."""
    if outgoing.doubtful:
        say("Receivers on other systems may not be able to store these names:")
    for name in outgoing.doubtful:
        say(f"  {visible(name)}")
    for name in outgoing.left_out:
        say(f"left out: {visible(name)}")


class Files(msgspec.Struct, frozen=True):
    """A file or a directory that is sent."""

    outgoing: Outgoing
    transit: TransitOptions

    @property
    def kind(self) -> str:
        """A word for it."""
        return "file" if self.outgoing.offer.directory is None else "directory"

    @property
    def described(self) -> str:
        """Its name and size."""
        offer, name = self.outgoing.offer.directory, visible(self.outgoing.name)
        if offer is None:
            return f"file {name!r} ({decimal(self.outgoing.size)})"
        return f"directory {name!r} ({_contents(offer.numfiles, offer.numdirs, offer.numbytes)})"

    async def send(self, wormhole: Wormhole) -> None:
        """Send it, and wait until it has arrived."""
        with progress_bar(self.outgoing.size, "waiting") as on_progress:
            await send_outgoing(wormhole, self.outgoing, transit=self.transit, on_progress=on_progress)


def show_offer(offered: OfferedText | OfferedFile | OfferedDirectory) -> None:
    """Show what the sender offers, and where it can be reached."""
    if isinstance(offered, OfferedText):
        say(f"offered: a text of {counted(len(offered.text), 'character')}")
        return
    say(f"offered: {_description(offered)}")
    show_hints("the sender is reached at", offered.hints)


def _description(offered: OfferedFile | OfferedDirectory) -> str:
    if isinstance(offered, OfferedFile):
        return f"file {quoted(offered.offered_name)} ({decimal(offered.size)})"
    return f"directory {quoted(offered.offered_name)} ({_contents(offered.files, offered.directories, offered.size)})"


def _contents(files: int, directories: int | None, size: int) -> str:
    """Return what is in a directory. Its directories are named if there are more of them than of files."""
    text = counted(files, "file")
    if directories is not None and directories > files:
        text += f", {directories:,} director{'y' if directories == 1 else 'ies'}"
    return f"{text}, {decimal(size)}"


def show_hints(title: str, hints: Hints) -> None:
    """Show where a side can be reached."""
    direct = ", ".join(map(str, hints.direct)) or "no address"
    relays = ", ".join(str(address) for relay in hints.relays for address in relay.addresses) or "none"
    say(f"{title}: {visible(direct)}; relay: {visible(relays)}")


def show_own_hints(options: TransitOptions) -> None:
    """Show where this side could be reached. The ports are others each time."""
    with Transit(options, SystemDice()) as transit:
        show_hints("reached at", transit.hints)


async def store_offer(offered: OfferedFile | OfferedDirectory, options: StoreOptions) -> None:
    """Ask the user, then receive what is offered and store it. Raises Declined if it is not wanted."""
    if options.to_standard_output:
        await _print_file(offered, options)
        return
    directory_name = _unpacked_name(offered, options)
    async with reasons_sent(offered.wormhole, Role.RECEIVER):
        path = options.path(offered, directory_name)
    description = _description(offered)
    replace, is_directory = options.replace, directory_name is not None or isinstance(offered, OfferedDirectory)
    if options.is_replaced_by_log(path):
        await offered.reject("the receiver has another use for this name")
        raise Misuse(f"--dump-timing would write over {visible(str(path))}, or into it: --output names another place")
    expected_path = path
    if options.rename:
        async with reasons_sent(offered.wormhole, Role.RECEIVER):
            expected_path = free_path(path, directory=is_directory)
    exists = not options.rename and os.path.lexists(path)  # noqa: ASYNC240 - one look at a directory
    if exists and options.accept and not replace:
        await offered.reject(EXISTS)
        raise Misuse(exists_message(path))
    if not options.accept:
        async with reasons_sent(offered.wormhole, Role.RECEIVER):
            check_target(path, replace=not options.rename, rename=options.rename, directory=is_directory)
            check_writable(path.parent)
    if exists and not options.accept:
        await _confirm(offered, f"{visible(str(path))} exists already. Replace it by the {description}?")
        replace = True
    elif not options.accept:
        await _confirm(offered, f"Receive the {description} as {visible(str(expected_path))}?")
    else:
        say(f"Receiving the {description} as {visible(str(expected_path))}")
    await _offer_draft_removal(offered.wormhole, path.parent, ask=not options.accept)
    size = offered.size if isinstance(offered, OfferedFile) else offered.archive_size
    with progress_bar(size, "storing", unpacked_size=offered.size) as bar:
        if isinstance(offered, OfferedFile) and directory_name is None:
            stored = await offered.accept(path, replace=replace, rename=options.rename, on_progress=bar)
        else:
            store = offered.accept if isinstance(offered, OfferedDirectory) else offered.unpack
            stored = await store(path, replace=replace, rename=options.rename, on_progress=bar, on_unpack=bar.unpack)
    say(f"Stored as {visible(str(stored))}")


def _unpacked_name(offered: OfferedFile | OfferedDirectory, options: StoreOptions) -> str | None:
    """Return the name of the directory as which a tar file is stored. None: it is not unpacked; say why."""
    if not options.unpack or not isinstance(offered, OfferedFile):
        return None
    if offered.directory_name is None:
        say("It is stored as one file: --unpack unpacks only a file that is named NAME.tar.")
    return offered.directory_name


async def _offer_draft_removal(wormhole: Wormhole, folder: Path, *, ask: bool) -> None:
    """Offer to remove what receivers left in a folder when they were killed. It takes room that is needed now."""
    drafts = await asyncio.to_thread(abandoned_drafts, folder)
    if not drafts:
        return
    names = ", ".join(quoted(draft.name) for draft in drafts[:MAX_DRAFTS_SHOWN])
    more = f" and {len(drafts) - MAX_DRAFTS_SHOWN:,} more" if len(drafts) > MAX_DRAFTS_SHOWN else ""
    say(f"Receivers that were killed left unfinished files in {quoted_path(str(folder))}: {names}{more}.")
    if not ask:
        say("Remove them if you do not need them.")
        return
    async with reasons_sent(wormhole, Role.RECEIVER):
        if await ask_user(wormhole, "Remove them?"):
            for draft in drafts:
                await asyncio.to_thread(remove_abandoned_draft, draft)


async def _print_file(offered: OfferedFile | OfferedDirectory, options: StoreOptions) -> None:
    """Write a file to standard output, after asking the user."""
    description = _description(offered)
    if isinstance(offered, OfferedDirectory):
        await offered.reject("the receiver writes to standard output, and a directory cannot be written there")
        raise Misuse(f"the {description} cannot be written to standard output: --output names another place")
    if options.accept:
        say(f"Receiving the {description}")
    else:
        await _confirm(offered, f"Receive the {description} and write it to standard output?")
    output = StandardOutput()
    with progress_bar(offered.size, "waiting", hidden=output.is_terminal) as on_progress:
        await offered._write_to(output.write, on_progress)
    output.end()
    say("Written to standard output")


class StandardOutput:
    """Where a file is written. On a terminal, control characters of it are shown as escapes."""

    def __init__(self) -> None:
        self._descriptor = sys.stdout.fileno()
        self.is_terminal = sys.stdout.isatty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._encoding = sys.stdout.encoding
        self._waits = not stat.S_ISREG(os.fstat(self._descriptor).st_mode)

    def write(self, data: memoryview, check: Callable[[], None]) -> None:
        """Write all bytes. Call `check` while nobody reads them. Raises StoreError."""
        if self.is_terminal:
            self._write(self._visible_bytes(self._decoder.decode(data)), check)
        else:
            self._write(data, check)

    def end(self) -> None:
        """Show the bytes of a character that the end of the file has cut off."""
        if self.is_terminal:
            self._write(self._visible_bytes(self._decoder.decode(b"", final=True)), lambda: None)

    def _visible_bytes(self, text: str) -> memoryview:
        return memoryview(visible(text).encode(self._encoding, "backslashreplace"))

    def _write(self, data: memoryview, check: Callable[[], None]) -> None:
        try:
            while data:
                if self._waits and not select([], [self._descriptor], [], WAIT_SECONDS)[1]:
                    check()
                    continue
                # A pipe that is ready takes as many bytes without waiting (pipe(7)).
                data = data[os.write(self._descriptor, data[:PIPE_BUF] if self._waits else data) :]
        except OSError as error:
            raise StoreError(f"cannot write to standard output: {plain(error)}").with_peer_text() from error


async def _confirm(offered: OfferedFile | OfferedDirectory, question: str) -> None:
    """Ask whether to receive something. If not, send the sender the reason, and raise Declined."""
    async with reasons_sent(offered.wormhole, Role.RECEIVER):
        answer = await ask_user(offered.wormhole, question)
    if answer:
        return
    if answer is None:
        await offered.reject("nobody was there to accept it")
        raise Declined("nothing was received: standard input has no answer; --accept asks nothing")
    await offered.reject()
    raise Declined("nothing was received")


async def ask_user(wormhole: Wormhole, question: str) -> bool | None:
    """Ask the user. None: standard input has ended. Raises what ends the wormhole before the answer."""
    try:
        with span(wormhole.timing, "permission", waiting=USER):
            return await unless_given_up(wormhole, answered_yes(question))
    except WormholeError:
        say("")  # so that the error is not on the line of the question
        raise


class Bar:
    """Shows how much of a transfer is done. This one shows nothing."""

    def __call__(self, done: int) -> None:
        """Show how many bytes are transferred."""

    def unpack(self, done: int) -> None:
        """Show how many bytes are unpacked."""


@contextmanager
def progress_bar(size: int, final_step: str, *, unpacked_size: int = 0, hidden: bool = False) -> Iterator[Bar]:
    """Show how much of a transfer is done, on a terminal. Yields what is called with the bytes so far.

    `final_step` says what is done when all bytes are transferred: a directory is unpacked, and disks take time.
    """
    if hidden or not can_rewrite(sys.stderr):
        yield Bar()
        return
    # Imported here: this takes 40 ms, which scripts need not wait for.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.table import Column

    console = Console(stderr=True)
    figures = (
        DownloadColumn(table_column=Column(no_wrap=True)),
        TransferSpeedColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.description}"),
    )
    bar_width = min(MAX_BAR_COLUMNS, console.width - FIGURES_COLUMNS)
    columns = (BarColumn(bar_width), *figures) if console.width >= BAR_COLUMNS else figures
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("left", total=size)

        class DrawnBar(Bar):
            unpacks = False

            def __call__(self, done: int) -> None:
                progress.update(task, completed=done, description="left" if done < size else final_step)

            def unpack(self, done: int) -> None:
                if not self.unpacks:
                    self.unpacks = True
                    progress.reset(task, total=unpacked_size)
                progress.update(task, completed=done, description="unpacking" if done < unpacked_size else final_step)

        yield DrawnBar()
