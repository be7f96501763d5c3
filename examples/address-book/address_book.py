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
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from restante.client import Journal, JournaledWormhole, Misuse, RestanteError

APP_ID = "example.com/address-book"


@dataclass
class Entry:
    """A person's address."""

    name: str
    address: str


@dataclass
class Book:
    """What the program remembers. The journal remembers the wormhole."""

    mine: list[Entry] = field(default_factory=list)
    friends: list[Entry] = field(default_factory=list)
    """The friend's entries."""
    sent: int = 0
    """How many of mine were sent to the friend."""
    meeting: int = 1
    """The number of the wormhole to the friend. There is a second one if the first code was not used in time."""


def friend_of(journal: Journal[Book], server: str) -> JournaledWormhole:
    """Return the wormhole to the friend."""
    return journal.wormhole(f"meeting {journal.state.meeting}", APP_ID, server=server)


async def meet(journal: Journal[Book], server: str, code: str | None) -> None:
    """Use the friend's code, or print one for the friend."""
    friend = friend_of(journal, server)
    if friend.mood is not None or (code is not None and friend.code not in {None, code}):
        async with journal.step() as book:  # the earlier code led to nobody
            book.meeting += 1
            book.sent -= len(friend.unacknowledged)
        friend = friend_of(journal, server)
    async with friend:
        if code is not None:
            await friend.set_code(code)
        else:
            print(await friend.allocate_code())
        await exchange(journal, friend)


async def exchange(journal: Journal[Book], friend: JournaledWormhole) -> None:
    """Send what is new, and keep what has come."""
    async with journal.step() as book:
        for entry in book.mine[book.sent :]:
            await friend.send(msgspec.json.encode(entry))
        book.sent = len(book.mine)
    async for message in friend.waiting():
        async with journal.step(message) as book:
            if (received := entry_of(message.data)) is not None:
                book.friends.append(received)


def entry_of(message: bytes) -> Entry | None:
    """Return the entry in a message of the friend, or None: a friend may send anything."""
    try:
        entry = msgspec.json.decode(message, type=Entry)
    except msgspec.DecodeError:
        return None
    return entry if f"{entry.name}{entry.address}".isprintable() else None


async def carry_out(words: argparse.Namespace) -> None:
    """Do what a command says."""
    async with Journal(words.book, Book()) as journal:
        if words.command == "add":
            async with journal.step() as book:
                if (entry := Entry(words.name, words.address)) not in book.mine:
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
            async with friend:
                await exchange(journal, friend)
                print(f"entries that the friend does not have yet: {len(friend.unacknowledged)}")
        else:
            await meet(journal, words.server, words.code if words.command == "accept" else None)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Exchange address-book entries with a friend.")
    parser.add_argument("--server", default="ws://127.0.0.1:4000/v1", help="the mailbox server (%(default)s)")
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
    except RestanteError as error:
        sys.exit(f"address_book: {error}")


if __name__ == "__main__":
    main()
