"""Exchange address-book entries with a friend whose program never runs at the same time.

    python3 address_book.py BOOK add NAME ADDRESS    add an entry of yours
    python3 address_book.py BOOK invite              print a code, to be told to the friend
    python3 address_book.py BOOK accept CODE         use the friend's code
    python3 address_book.py BOOK exchange            send what is new, and fetch what has come
    python3 address_book.py BOOK list                print all entries

BOOK is a file, the journal: it has the entries, and the wormhole to the friend. A command that was killed at any
moment can be given again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from restante.client import (
    Event,
    Journal,
    JournaledWormhole,
    Message,
    Misuse,
    Reconnecting,
    RestanteError,
    WormholeError,
)

APP_ID = "example.com/address-book"

MOVE_AFTER = 500
"""Entries of both after which they move on to a new mailbox. With their receipts they are less than half of what a
mailbox of `restante serve` may hold."""

MAX_ENTRY_CHARACTERS = 1000


@dataclass
class Entry:
    """A person's address."""

    name: str
    address: str


@dataclass
class Have:
    """The first message in each mailbox: how many entries of the other one somebody has."""

    have: int


@dataclass
class Moved:
    """The last message in a mailbox: somebody uses the next one."""

    moved: bool


@dataclass
class Book:
    """What the program remembers. The journal remembers the wormhole."""

    mine: list[Entry] = field(default_factory=list)
    friends: list[Entry] = field(default_factory=list)
    """The friend's entries."""
    received: int = 0
    """How many entries have come from the friend, also those that cannot be read."""
    meeting: int = 1
    """The number of the wormhole to the friend, which is in its name."""
    greeted: bool = False
    """Whether the friend was told there how many entries have come."""
    sent: int | None = None
    """How many of mine were sent to the friend. None: the friend has not said yet how many have come."""
    exchanged: int = 0
    """How many entries of both were sent in this wormhole."""


def friend_of(journal: Journal[Book], server: str, meeting: int | None = None) -> JournaledWormhole:
    """Return the wormhole to the friend: that of the current meeting, or of another one."""
    name = f"meeting {journal.state.meeting if meeting is None else meeting}"
    return journal.wormhole(name, APP_ID, server=server, seeds=True, on_event=show)


def show(event: Event) -> None:
    """Tell the user that the server cannot be reached, and that the command waits for it."""
    if isinstance(event, Reconnecting) and event.delay >= 1:  # shorter delays are those of an end
        print(f"{event.reason}; trying again in {event.delay:.0f} s", file=sys.stderr)


def begin_next(book: Book) -> None:
    """Use the next wormhole from now on. Nothing that comes in the earlier ones is processed any more."""
    book.meeting += 1
    book.greeted, book.sent, book.exchanged = False, None, 0


async def meet(journal: Journal[Book], words: argparse.Namespace) -> None:
    """Use the friend's code, or print one for the friend."""
    code: str | None = words.code if words.command == "accept" else None
    friend = friend_of(journal, words.server)
    if friend.mood is None and friend.met and friend.code != code:
        raise Misuse("this book has a friend already: use another file for another friend")
    if friend.mood is not None or (code is not None and friend.code not in {None, code}):
        async with journal.step() as book:  # the earlier code led to nobody
            begin_next(book)
        friend = friend_of(journal, words.server)
    async with friend:
        if code is not None:
            await friend.set_code(code)
        else:
            print(await friend.allocate_code())
    await exchange(journal, words)


async def exchange(journal: Journal[Book], words: argparse.Namespace) -> None:
    """Exchange entries, and move on to the next mailbox when this one has enough."""
    meeting = None
    while meeting != journal.state.meeting:
        meeting = journal.state.meeting
        async with friend_of(journal, words.server) as friend:
            await exchange_in(journal, friend, words)
    on_its_way = sum(number > 0 for number in friend.unacknowledged)  # the first message is no entry
    await leave_earlier(journal, words.server)
    if words.command == "exchange":
        missing = len(journal.state.mine) - (journal.state.sent or 0) + on_its_way
        print(f"entries that the friend does not have yet: {missing}")


async def exchange_in(journal: Journal[Book], friend: JournaledWormhole, words: argparse.Namespace) -> None:
    """Keep what has come in a wormhole, send what is new, and begin the next one if this one has enough."""

    async def move_on(book: Book) -> None:
        begin_next(book)
        await friend_of(journal, words.server, book.meeting).set_seed(await friend.seed())

    async with journal.step() as book:
        if not book.greeted:
            await friend.send(msgspec.json.encode(Have(book.received)))
            book.greeted = True
    async for message in friend.waiting():
        async with journal.step(message) as book:
            said = read(message)
            if isinstance(said, Moved):
                await move_on(book)
            elif isinstance(said, Have):
                book.sent = min(max(said.have, 0), len(book.mine))
            else:
                book.received += 1
                book.exchanged += 1
                book.friends += [] if said is None else [said]
        if isinstance(said, Moved):
            return
    async with journal.step() as book:
        if book.sent is None:
            return
        for entry in book.mine[book.sent :][: max(words.move_after - book.exchanged, 0)]:
            await friend.send(msgspec.json.encode(entry))
            book.sent += 1
            book.exchanged += 1
    if book.exchanged >= words.move_after:
        async with journal.step() as book:
            await friend.send(msgspec.json.encode(Moved(True)))
            await move_on(book)


async def leave_earlier(journal: Journal[Book], server: str) -> None:
    """Close and remove the wormholes before the current one, the last of them when the friend has moved on, too.

    One whose code led to nobody has no friend to wait for.
    """
    book = journal.state
    for meeting in range(1, book.meeting):
        if f"meeting {meeting}" not in journal.names:
            continue
        earlier = friend_of(journal, server, meeting)
        waits = meeting == book.meeting - 1 and book.sent is None and earlier.met
        with suppress(WormholeError):  # it has no more messages for us
            async with earlier:  # adds again what the server has forgotten
                if not waits:
                    await earlier.close()
        if not waits:
            await journal.remove(f"meeting {meeting}")


def read(message: Message) -> Entry | Have | Moved | None:
    """Return what a message of the friend says, or None: a friend may send anything."""
    kinds: tuple[type[Entry | Have | Moved], ...] = (Entry, Have, Moved)
    for kind in kinds:
        with suppress(msgspec.DecodeError):
            said = msgspec.json.decode(message.data, type=kind)
            return said if not isinstance(said, Entry) or is_short_text(said) else None
    return None


def is_short_text(entry: Entry) -> bool:
    """Return whether an entry can be printed, and fits into a mailbox."""
    text = entry.name + entry.address
    return text.isprintable() and len(text) <= MAX_ENTRY_CHARACTERS


async def carry_out(words: argparse.Namespace) -> None:
    """Do what a command says."""
    async with Journal(words.book, Book()) as journal:
        if words.command == "add":
            entry = Entry(words.name, words.address)
            if not is_short_text(entry):
                raise Misuse(f"an entry is a line of text with at most {MAX_ENTRY_CHARACTERS} characters")
            async with journal.step() as book:
                if entry not in book.mine:
                    book.mine.append(entry)
        elif words.command == "list":
            book = journal.state
            for entry, whose in [
                *((each, "") for each in book.mine),
                *((each, " (friend)") for each in book.friends),
            ]:
                print(f"{entry.name}: {entry.address}{whose}")
        elif words.command == "exchange":
            friend = friend_of(journal, words.server)
            if friend.code is None or friend.mood is not None:
                raise Misuse("there is no friend yet: invite one, or accept an invitation")
            await exchange(journal, words)
        else:
            await meet(journal, words)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Exchange address-book entries with a friend.")
    parser.add_argument("--server", default="ws://127.0.0.1:4000/v1", help="the mailbox server (%(default)s)")
    parser.add_argument(
        "--move-after",
        type=positive,
        default=MOVE_AFTER,
        metavar="N",
        help="entries after which both move on to a new mailbox (%(default)s)",
    )
    parser.add_argument("book", type=Path, help="the file with your address book")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="add an entry of yours")
    add.add_argument("name")
    add.add_argument("address")
    commands.add_parser("invite", help="print a code, to be told to the friend")
    commands.add_parser("accept", help="use the friend's code").add_argument("code")
    commands.add_parser("exchange", help="send what is new, and fetch what has come")
    commands.add_parser("list", help="print all entries")
    try:
        asyncio.run(carry_out(parser.parse_args()))
    except (RestanteError, OSError) as error:
        sys.exit(f"address_book: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def positive(text: str) -> int:
    """Return a number of entries. Raises ValueError if it is none."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


if __name__ == "__main__":
    main()
