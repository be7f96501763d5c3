"""A year of a fleet's data: the memory of `restante pipeline run`, what a day costs at its end, and its reports.

python bench/pipeline_year.py [--days N] [--rows N] [--envelopes N] [--seed N] [--json FILE] [--scratch DIR]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import duckdb
import msgspec

from figures import Figure, Results, own
from host import facts, scratch_root
from pipeline_run import DAY_SECONDS
from pipeline_year_fleet import Fleet, stretches
from process_tree import Used, adopt, measure
from restante.pipeline.lake.lake import Lake
from restante.pipeline.schemas import QUARANTINE
from restante.pipeline.tables import TABLES
from restante.pipeline.views import views

GB: Final = 1e9
FIGURES: Final = {
    "memory": Figure("peak memory of a day, all processes (PSS), GB", target=own(4, 3), compared=False),
    "memory_rss": Figure("  the same, shared pages counted in each process (RSS), GB", compared=False),
    "memory_many": Figure("  peak memory of a run of many days (PSS), GB", compared=False),
    "cpu": Figure("CPU time of a day, day {n} over day {every}, times", target=own(1.3, 1.1), compared=False),
    "wall": Figure("wall time of a day, day {n} over day {every}, times", target=own(1.3, 1.1), compared=False),
    "reports": Figure("the reports of its {months} months, s", target=own(20, 10), compared=False),
    "cpu_first": Figure("  CPU time of a day, day {every}, s", compared=False),
    "cpu_last": Figure("  CPU time of a day, day {n}, s", compared=False),
    "wall_first": Figure("  wall time of a day, day {every}, s", compared=False),
    "wall_last": Figure("  wall time of a day, day {n}, s", compared=False),
}


class Measured(msgspec.Struct, frozen=True):
    """A run of the pipeline, and the compact after it."""

    first: int
    last: int
    load: float
    """The machine's load in the minute before."""
    run: Used
    compact: Used
    files: int
    """Files of all tables, after the compact."""


class State(msgspec.Struct):
    """How far a year has come, so that it can go on after an interruption."""

    midnight: int
    rows: int
    envelopes: int
    seed: int
    served: int = 0
    """The last day that was served."""
    serving: bool = False
    """Whether more days are being served: if this is interrupted, nobody knows what the servers have."""
    made: dict[str, int] = {}
    runs: list[Measured] = []
    again: list[tuple[Used, Used]] = []
    """The first and the last measured day, in turns."""
    reports: list[Used] = []
    """Of all months, at the end."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--days", type=int, default=360)
    parser.add_argument("--every", type=int, default=30, help="days from one measured day to the next")
    parser.add_argument("--singly", type=int, default=2, help="days with a run each, up to each measured one")
    parser.add_argument("--rounds", type=int, default=3, help="of the first and last measured day, in turns")
    parser.add_argument("--rows", type=int, default=27_800, help="usage rows of a day")
    parser.add_argument("--envelopes", type=int, default=27_800, help="of a day, each counted once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep what each run printed in DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of each run to FILE")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the servers' data and the lake are")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="keep all in DIR, and go on there if it was begun")
    return parser.parse_args()


class Kept:
    """The servers' data and the lake as they were before a run."""

    def __init__(self, folder: Path, fleet: Fleet) -> None:
        self._folder = folder
        self.fleet: Final = fleet._replace(folder=folder / "fleet")

    def fill(self, fleet: Path, lake: Path) -> None:
        """Copy the servers' data, and the lake, unless that was done before."""
        if self._folder.exists():
            return
        draft = self._folder.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(fleet, draft / "fleet")
        shutil.copytree(lake, draft / "lake", copy_function=_link)
        draft.replace(self._folder)

    def copy_lake(self, place: Path) -> None:
        """Copy the lake to a place where a run may change it."""
        shutil.copytree(self._folder / "lake", place, copy_function=_link)


def _link(source: str, target: str) -> None:
    """Link a data file, which never changes, and copy any other file."""
    (os.link if source.endswith(".parquet") else shutil.copy2)(source, target)


def _named(fleet: Fleet) -> list[str]:
    """Return the options for the fleet's servers."""
    return [word for each in fleet.sources for word in ("--source", each)]


class Year:
    """The fleet, the lake and the runs so far."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.lake, self._file = folder, folder / "lake", folder / "state.json"
        self.logs = options.logs or folder / "logs"
        for each in (self.logs, folder / "tmp"):
            each.mkdir(parents=True, exist_ok=True)
        today = int(time.time()) // DAY_SECONDS
        first = (today - options.days) * DAY_SECONDS  # the last day is yesterday
        self.state = State(first, options.rows, options.envelopes, options.seed)
        begun = self._file.exists()
        if begun:
            self.state = msgspec.json.decode(self._file.read_bytes(), type=State)
        state = self.state
        if state.serving or (state.rows, state.envelopes, state.seed) != (
            options.rows,
            options.envelopes,
            options.seed,
        ):
            raise SystemExit(f"{folder} was interrupted while days were served, or has other options: remove it")
        self.fleet = Fleet(folder / "fleet", state.midnight, state.rows, state.envelopes, state.seed)
        if not begun:
            (folder / "fleet").mkdir()
            self.fleet.make()

    def _save(self) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(self.state))
        draft.replace(self._file)

    def live(self, first: int, last: int, *, keep: bool) -> None:
        """Serve some days, and run the pipeline once, as cron does. Skip what was done before an interruption."""
        state = self.state
        if state.runs and state.runs[-1].last >= last:
            return
        start = time.perf_counter()
        if state.served < last:
            state.serving = True
            self._save()
            state.made = dict(Counter(state.made) + self.fleet.serve(first, last))
            state.served, state.serving = last, False
            self._save()
        served = time.perf_counter() - start
        if keep:
            self._kept(last).fill(self.fleet.folder, self.lake)
        os.sync()
        load = os.getloadavg()[0]
        name = f"{first:03}-{last:03}"
        run = self._restante(f"{name}-run", self.lake, "run", *_named(self.fleet))
        compact = self._restante(f"{name}-compact", self.lake, "compact")
        if first != last:
            self._restante(f"{name}-vacuum", self.lake, "vacuum", "--grace", "0")
        found = Measured(first, last, load, run, compact, sum(1 for _ in self.lake.glob("*/*=*/**/*.parquet")))
        print(f"{_row(found)}   (served in {served:.0f} s)", flush=True)
        state.runs.append(found)
        self._save()

    def compare(self, first: int, last: int, rounds: int) -> None:
        """Run two days that were kept again, in turns."""
        for round_ in range(len(self.state.again), rounds):
            one, other = (self.again(day, round_) for day in (first, last))
            self.state.again.append((one, other))
            self._save()

    def report(self, months: Sequence[str], rounds: int) -> None:
        """Write the reports of all months, as one command."""
        while len(self.state.reports) < rounds:
            output = self.folder / "reports"
            shutil.rmtree(output, ignore_errors=True)
            used = self._restante(
                f"report-{len(self.state.reports)}", self.lake, "report", *months, "-o", str(output)
            )
            print(f"reports of {len(months)} months: {used.wall:.1f} s, CPU {used.cpu:.1f} s", flush=True)
            self.state.reports.append(used)
            self._save()

    def months(self, days: int) -> list[str]:
        """Return the months that have some of the days, as `restante pipeline report` takes them."""
        starts = (self.state.midnight + day * DAY_SECONDS for day in range(days))
        return list(dict.fromkeys(f"{datetime.fromtimestamp(start, UTC):%Y-%m}" for start in starts))

    def _kept(self, day: int) -> Kept:
        return Kept(self.folder / "kept" / f"{day}", self.fleet)

    def again(self, day: int, round_: int) -> Used:
        """Run a day again that was kept, in the lake as it was."""
        kept = self._kept(day)
        lake = self.folder / "again"
        shutil.rmtree(lake, ignore_errors=True)
        kept.copy_lake(lake)
        os.sync()
        load = os.getloadavg()[0]
        used = self._restante(f"{day:03}-again-{round_}", lake, "run", *_named(kept.fleet))
        shutil.rmtree(lake)
        print(f"day {day} again: {used.wall:.1f} s, CPU {used.cpu:.1f} s, load {load:.1f}", flush=True)
        return used

    def _restante(self, log: str, lake: Path, *words: str) -> Used:
        command = [str(Path(sys.executable).with_name("restante")), "pipeline", *words, "--lake", str(lake)]
        path = self.logs / f"{log}.log"
        with path.open("wb") as output:
            used = measure(command, os.environ | {"TMPDIR": str(self.folder / "tmp")}, output)
        if used.exit_code:
            raise SystemExit(f"restante pipeline {words[0]} ended with {used.exit_code}:\n{path.read_text()}")
        return used

    def check(self) -> list[str]:
        """Return what is wrong in the lake: each row that was made must be there, and no other."""
        with Lake.open(self.lake, write=False) as lake, duckdb.connect() as database:
            found = {
                name: sum(file.rows for file in lake.table(TABLES[name]).files())
                for name in (*self.state.made, QUARANTINE.name)
            }
            database.execute("".join(views(lake, TABLES.values())))
            held = database.execute("SELECT sum(holders)::BIGINT, count(DISTINCT hash) FROM envelopes").fetchone()
        wanted = {**self.state.made, QUARANTINE.name: 0}
        wrong = [
            f"{name} has {found[name]:,} rows, not {count:,}"
            for name, count in wanted.items()
            if found[name] != count
        ]
        if held != (self.state.made["archived"], self.state.made["envelopes"]):
            wrong.append(f"envelopes: holders and hashes are {held}, not those of archived")
        return wrong


HEAD: Final = "     days   wall, s   CPU, s   PSS, GB   RSS, GB   files  compact, CPU s   load"


def _row(each: Measured) -> str:
    days = f"{each.first}" if each.first == each.last else f"{each.first}-{each.last}"
    return (
        f"{days:>9}  {each.run.wall:8.1f}  {each.run.cpu:7.1f}  {each.run.pss / GB:8.2f}  {each.run.rss / GB:8.2f}"
        f"  {each.files:6,}  {each.compact.cpu:14.1f}  {each.load:5.1f}"
    )


def results(options: argparse.Namespace, months: int, state: State) -> Results:
    """Judge the runs of one day, and the reports of all months."""
    runs, again = state.runs, state.again
    values = {"{every}": options.every, "{months}": months}
    titles = {name: each.title for name, each in FIGURES.items()}
    for place, value in values.items():
        titles = {name: title.replace(place, str(value)) for name, title in titles.items()}
    found = Results(options.days, {name: replace(each, title=titles[name]) for name, each in FIGURES.items()})
    single = [each.run for each in runs if each.first == each.last] + [used for pair in again for used in pair]
    many = [each.run for each in runs if each.first != each.last]
    found.add("memory", "restante", max(each.pss for each in single) / GB)
    found.add("memory_rss", "restante", max(each.rss for each in single) / GB)
    if many:
        found.add("memory_many", "restante", max(each.pss for each in many) / GB)
    for used in state.reports:
        found.add("reports", "restante", used.wall)
    for first, last in again:
        for name in ("cpu", "wall"):
            one, other = getattr(first, name), getattr(last, name)
            found.add(name, "restante", other / one)
            found.add(f"{name}_first", "restante", one)
            found.add(f"{name}_last", "restante", other)
    return found


@contextmanager
def workplace(options: argparse.Namespace) -> Iterator[Path]:
    """Yield the folder of the servers' data and the lake. It is removed at the end, unless it is named."""
    if options.resume:
        options.resume.mkdir(parents=True, exist_ok=True)
        yield options.resume
        return
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-", dir=scratch_root(options.scratch)) as scratch:
        yield Path(scratch)


def main() -> int:
    options = arguments()
    adopt()
    with workplace(options) as folder:
        machine: Mapping[str, str] = facts(folder, ("restante", "pyspark", "deltalake", "pyarrow"))
        for name, value in machine.items():
            print(f"{name:10} {value}")
        print(f"\n{HEAD}", flush=True)
        year = Year(folder, options)
        for each in year.state.runs:
            print(_row(each))
        for first, last in stretches(options.days, options.every, options.singly):
            year.live(first, last, keep=last in {options.every, options.days})
        failures = year.check()
        print()
        months = year.months(options.days)
        year.report(months, options.rounds)
        year.compare(options.every, options.days, options.rounds)
        size = sum(file.stat().st_size for file in year.lake.rglob("*") if file.is_file())
    state = year.state
    found = results(options, len(months), state)
    made = ", ".join(f"{count:,} rows of {name}" for name, count in state.made.items())
    print(f"\n{made}: a lake of {size / GB:.1f} GB\n\n{found.table()}")
    for failure in failures:
        print(f"FAILED  {failure}")
    if options.json:
        content = {
            "machine": machine,
            "runs": state.runs,
            "again": state.again,
            "reports": state.reports,
            "figures": found.as_json(),
            "failures": failures,
        }
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
