"""What SQLite itself says about the database that we have open, and whose files we take."""

import threading
from pathlib import Path

from restante.mailbox.store.schema import APPLICATION_ID, migrations
from restante.mailbox.store.sqlite import Store
from support.mailbox.ledger import Ledger


async def test_a_commit_is_flushed_to_the_log(tmp_path: Path) -> None:
    store = Store.open(tmp_path)

    def asked(pragma: str) -> object:
        return store.database.execute(f"PRAGMA {pragma}").fetchone()[0]

    assert asked("journal_mode") == "wal"
    assert asked("synchronous") == 2  # FULL: sqlite.org/pragma.html#pragma_synchronous
    assert asked("application_id") == APPLICATION_ID
    assert asked("user_version") == len(migrations())
    await store.close()


async def test_large_messages_are_written_and_dropped_off_the_loop_and_small_ones_on_it(tmp_path: Path) -> None:
    """SQLite takes 25 ms to drop 16 MiB; a thread and back costs more than to write a small message."""
    store = Store.open(tmp_path)
    ledger = await Ledger.begin(store)
    loop, on_the_loop = threading.get_ident(), dict[str, bool]()

    def note(statement: str) -> None:
        on_the_loop[" ".join(statement.split()[:3])] = threading.get_ident() == loop

    store.database.set_trace_callback(note)
    for body in (b'"00"', b'"' + b"0" * 2_000_000 + b'"'):
        on_the_loop.clear()
        ledger.open("a", "m")
        ledger.add("a", "m", body)
        await ledger.commit(store)
        ledger.close("a", "m")
        await ledger.commit(store)
        small = len(body) < 100
        deleted = on_the_loop["DELETE FROM messages"], on_the_loop["DELETE FROM mailboxes"]
        assert (on_the_loop["INSERT INTO messages"], *deleted) == (small, small, small)
    store.database.set_trace_callback(None)
    await store.close()


async def test_small_messages_are_written_without_reading_large_ones(tmp_path: Path) -> None:
    """With the messages in an index (schema 4) each insert read several of them."""
    store = Store.open(tmp_path)
    ledger = await Ledger.begin(store)
    boxes = [f"m{number}" for number in range(8)]
    for name in boxes:
        ledger.open("a", name)
        ledger.add("a", name, b'"' + b"0" * 1_000_000 + b'"')
        await ledger.commit(store)
    before = bytes_read()
    for _ in range(5):
        for name in boxes:
            ledger.add("a", name, b'"00"')
        await ledger.commit(store)
    assert bytes_read() - before < 1_000_000
    await store.close()


def bytes_read() -> int:
    """Return how much this process has read from files (man 5 proc, /proc/pid/io)."""
    return int(Path("/proc/self/io").read_text().split()[1])
