"""Make a fleet in a folder: all of its sources, and the ground truth, or nothing."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Final, NamedTuple

from restante.common.atomic_file import flush
from restante.common.errors import InUse, Misuse, StoreError, plain
from restante.common.lock_file import lock_file
from restante.common.texts import counted
from restante.demo import envelopes, relay, usage
from restante.demo.events import Events, GroundTruth, decode_truth, draw_events, encode_truth
from restante.demo.fleet import MAILBOX_SERVERS, MAILSERVERS, PROBED_SERVER, RELAY, Fleet

SOURCES: Final = "sources"
LAKE: Final = "lake"
REPORTS: Final = "reports"
"""What is in the folder of a demo."""

UNFINISHED: Final = "sources.unfinished"
"""The folder while it is being made. What a killed run left there is removed by the next one."""

TRUTH: Final = "fleet.json"
"""The file in the folder of the sources that says which fleet it is, and what happened in it."""

_LOCK: Final = "lock"


class FleetPart(NamedTuple):
    """A part of a fleet, which is made in a process of its own."""

    name: str
    unit: str
    make: Callable[[], int]
    """Makes it, and returns how many of the units there are. It can be sent to another process."""


def fleet_parts(fleet: Fleet, events: Events, folder: Path) -> list[FleetPart]:
    """Return the parts of a fleet, those first that take longest."""
    folders = {name: folder / name for name in MAILSERVERS}
    archives = partial(envelopes.make_archives, fleet, events, folders)
    servers = [
        FleetPart(
            server.name, "conversation", partial(usage.simulate_server, fleet, events, server, folder / server.name)
        )
        for server in MAILBOX_SERVERS
    ]
    relayed = partial(relay.simulate_relay, fleet, events, folder / RELAY)
    return [
        servers[0],
        FleetPart(" and ".join(MAILSERVERS), "envelope", archives),
        *servers[1:],
        FleetPart(RELAY, "transfer", relayed),
    ]


def make_fleet(
    fleet: Fleet, folder: Path, report_part: Callable[[str], None], *, processes: int | None = None
) -> GroundTruth:
    """Make a fleet in a new folder. `report_part` is called with a text about each part that is done.

    By default there is a process for each processor. One process makes all parts in this one.
    """
    truth = GroundTruth(fleet=fleet, events=draw_events(fleet))
    parts = fleet_parts(fleet, truth.events, folder)
    process_count = min(processes or os.cpu_count() or 1, len(parts))
    if process_count == 1:
        for part in parts:
            report_part(_part_text(part, part.make()))
    else:
        # Spawned: a fork would copy the threads' locks of the terminal's progress.
        with ProcessPoolExecutor(process_count, get_context("spawn"), _end_with_parent) as pool:
            futures = {pool.submit(part.make): part for part in parts}
            for future in as_completed(futures):
                report_part(_part_text(futures[future], future.result()))
    (folder / TRUTH).write_bytes(encode_truth(truth))
    flush(folder / TRUTH)
    return truth


def _end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, even if it was killed."""

    def wait() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _part_text(part: FleetPart, count: int) -> str:
    return f"{part.name}: {counted(count, part.unit)}"


# ── the folder of a demo ─────────────────────────────────────────────────────────────────────────


def find_demo(folder: Path) -> GroundTruth | None:
    """Return the ground truth of the fleet in the folder of a demo, or None if the folder has no fleet yet.

    Raises Misuse if the folder cannot be used or has something else.
    """
    try:
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
        if names - {UNFINISHED, SOURCES, LAKE, REPORTS} or ({LAKE, REPORTS} & names and SOURCES not in names):
            raise Misuse(f"{folder} has other files: name a new folder for the demo, or an empty one")
        if SOURCES not in names:
            return None
        return decode_truth((folder / SOURCES / TRUTH).read_bytes())
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        reason = plain(error) if isinstance(error, OSError) else str(error)
        raise Misuse(f"{folder} has no fleet of this version's demo ({reason}): name a new folder") from error


def make_demo(
    fleet: Fleet,
    folder: Path,
    report_part: Callable[[str], None],
    *,
    processes: int | None = None,
    locked: Callable[[Path], None] = lambda _: None,
) -> GroundTruth:
    """Make a fleet in the folder of a demo. Its sources appear when they are complete.

    `locked` is called with the folder in which they are made, once no other demo is made there. Raises InUse if
    another one is, and Misuse if this folder is not of a demo.
    """
    unfinished = folder / UNFINISHED
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        if (
            unfinished.is_symlink()
            or unfinished.stat().st_uid != os.getuid()
            or (any(unfinished.iterdir()) and not (unfinished / _LOCK).exists())
        ):
            raise Misuse(f"{unfinished} was not made by a demo: remove it, or name another folder for the demo")
        lock = lock_file(unfinished / _LOCK)
    except BlockingIOError as error:
        raise InUse(f"another demo is being made in {folder}: wait for it, or name another folder") from error
    except OSError as error:
        raise Misuse(f"cannot write in {folder}: {plain(error)}") from error
    try:
        locked(unfinished)
        for path in unfinished.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _LOCK:
                path.unlink()
        truth = make_fleet(fleet, unfinished, report_part, processes=processes)
        unfinished.rename(folder / SOURCES)
        (folder / SOURCES / _LOCK).unlink()
        flush(folder)
    except OSError as error:
        raise StoreError(f"cannot make the demo in {folder}: {plain(error)}; run this again") from error
    except BrokenExecutor as error:
        raise StoreError("a process that made a part of the fleet was killed; run this again") from error
    finally:
        os.close(lock)
    return truth


def source_specs(folder: Path) -> list[str]:
    """Return the sources of a demo as `restante pipeline run` takes them: NAME[@SERVER]=PATH.

    Archives are first: for envelopes Spark starts in another way than for few rows, and so it starts only once.
    """
    sources = folder / SOURCES
    of_the_probed, trace = sources / PROBED_SERVER, f"{PROBED_SERVER}-trace"
    return [
        *(f"{name}={sources / name}" for name in MAILSERVERS),
        *(f"{server.name}={sources / server.name / usage.DATA_FOLDER}" for server in MAILBOX_SERVERS),
        *(f"{RELAY}={folder}" for folder in [sources / RELAY] if folder.exists()),  # older demos have no relay
        f"{trace}={of_the_probed / usage.TRACE_FILE}",
        f"probes@{trace}={of_the_probed / usage.LOGS_FOLDER}",
    ]
