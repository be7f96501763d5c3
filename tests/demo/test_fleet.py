"""The generator of `restante pipeline demo`: real servers and clients, and events that are where it says."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from restante.common.errors import InUse, Misuse, StoreError
from restante.common.lock_file import lock_file
from restante.common.transfer_records import RESULTS
from restante.demo import usage as served
from restante.demo.events import QUIET_DAYS, Events, EventSpan, GroundTruth, decode_truth, draw_events, encode_truth
from restante.demo.fleet import MAILBOX_SERVERS, MAILSERVERS, MIN_DAYS, PROBED_SERVER, RELAY, Fleet, midnight
from restante.demo.generate import SOURCES, TRUTH, UNFINISHED, find_demo, make_demo
from restante.mailbox.core import usage
from restante.mailbox.settings import Serve
from restante.pipeline.cli.demo import demo as pipeline_demo
from restante.pipeline.cli.demo import story_entries
from restante.timing.logs import log_items, read_event, read_line
from restante.waku.envelope.envelope import parse
from restante.waku.protocol.acceptance import Policy, judge
from support.bounds import PATIENCE, wait_until
from support.processes import RESTANTE, called, run
from support.sqlite import select

LAST = date(2026, 11, 20)
SMALL = Fleet(seed=7, last=LAST, days=MIN_DAYS, transfers=120)
"""A fleet whose events stand out of chance, and which is made in seconds."""

TINY = Fleet(seed=7, last=LAST, days=MIN_DAYS, transfers=6)


class Demo(NamedTuple):
    folder: Path
    truth: GroundTruth
    records: Counter[str]

    @property
    def events(self) -> Events:
        return self.truth.events

    def rows(self, server: str, sql: str) -> list[Any]:
        file = self.folder / SOURCES / server / served.DATA_FOLDER / "restante.sqlite"
        return select(file, sql)

    def count_by_day(self, server: str, table: str, where: str) -> Counter[str]:
        sql = f"SELECT date(started, 'unixepoch'), count(*) FROM {table} WHERE {where} GROUP BY 1"
        return Counter(dict(self.rows(server, sql)))

    def quiet_days(self, event: EventSpan) -> list[str]:
        return [str(day) for day in map(SMALL.day, range(SMALL.days)) if day not in event.days]

    def archived(self, name: str) -> dict[bytes, tuple[int, bytes]]:
        """Return the envelopes of a Mailserver by their hash: when each arrived, and its bytes."""
        file = self.folder / SOURCES / name / "archive.sqlite"
        rows = select(file, "SELECT arrived, raw FROM envelopes JOIN arrivals USING (arrival)")
        return {parse(raw).hash: (arrived, raw) for arrived, raw in rows}


USAGE_TABLES = {
    "nameplate_usage": "usage_nameplates",
    "mailbox_usage": "usage_mailboxes",
    "client_version": "usage_client_versions",
}
"""A function of the rules, and the table of what it makes."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    with ExitStack() as patches:
        spies = {
            name: patches.enter_context(patch.object(usage, name, wraps=getattr(usage, name)))
            for name in USAGE_TABLES
        }
        truth = make_demo(SMALL, folder, lambda _: None, processes=1)
    return Demo(folder, truth, Counter({name: spy.call_count for name, spy in spies.items()}))


def test_an_attack_is_where_the_ground_truth_says_and_nowhere_else(demo: Demo) -> None:
    [attack] = demo.events.attacks
    [day] = map(str, attack.days)
    for server in MAILBOX_SERVERS:
        refused = demo.count_by_day(server.name, "usage_nameplates", "result = 'crowded'")
        suspects = refused + demo.count_by_day(server.name, "usage_mailboxes", "result = 'scary'")
        claimed = demo.count_by_day(server.name, "usage_nameplates", "result = 'lonely'")
        quiet = demo.quiet_days(attack)
        if server.name == attack.server:
            assert suspects[day] > 2 * max(suspects[other] for other in quiet) + 2
            assert claimed[day] > 5 * max(claimed[other] for other in quiet)
        else:
            assert suspects[day] <= max(suspects[other] for other in quiet) + 2


def test_a_bad_release_is_used_and_fails_during_its_days_only(demo: Demo) -> None:
    [release] = demo.events.releases
    failed, closed = Counter[str](), Counter[str]()
    for server in MAILBOX_SERVERS:
        [(earliest, latest)] = demo.rows(
            server.name,
            "SELECT min(connect_time), max(connect_time) FROM usage_client_versions"
            f" WHERE implementation = '{release.implementation}' AND version = '{release.version}'",
        )
        assert release.contains(earliest)
        assert latest < release.end.timestamp() + 60  # who has begun goes on
        failed += demo.count_by_day(server.name, "usage_mailboxes", "result = 'errory'")
        closed += demo.count_by_day(server.name, "usage_mailboxes", "TRUE")
    shares = {day: failed[day] / closed[day] for day in closed}
    assert min(shares[str(day)] for day in release.days) > 2 * max(shares[day] for day in demo.quiet_days(release))


def test_a_server_has_no_connections_during_its_outage_and_never_else_for_so_long(demo: Demo) -> None:
    [outage] = demo.events.outages
    assert find_demo(demo.folder) == demo.truth
    assert outage.begin.utcoffset() == timedelta(0)
    for server in MAILBOX_SERVERS:
        times = [at for (at,) in demo.rows(server.name, "SELECT connect_time FROM usage_client_versions ORDER BY 1")]
        inside = [at for at in times if outage.contains(at)]
        if server.name == outage.server:
            assert inside == []
            *others, longest = sorted((after - before, before, after) for before, after in pairwise(times))
            assert longest[1] < outage.begin.timestamp() < outage.end.timestamp() < longest[2]
            assert others[-1][0] < (outage.end - outage.begin).total_seconds()
        else:
            assert inside


def test_a_mailserver_lacks_what_arrived_during_its_gaps_and_nothing_else(demo: Demo) -> None:
    archives = {name: demo.archived(name) for name in MAILSERVERS}
    for name, other in (MAILSERVERS, MAILSERVERS[::-1]):
        gaps = [gap for gap in demo.events.gaps if gap.mailserver == name]
        lacks = [arrived for hash_, (arrived, _) in archives[other].items() if hash_ not in archives[name]]
        assert len(lacks) > 5 * len(gaps)
        # It would have arrived here up to some seconds earlier or later than there.
        slack = timedelta(seconds=30)
        wide = [EventSpan(begin=gap.begin - slack, end=gap.end + slack, days=()) for gap in gaps]
        assert all(any(gap.contains(at) for gap in wide) for at in lacks)
        assert not any(gap.contains(arrived) for gap in gaps for arrived, _ in archives[name].values())
        for gap in gaps:
            assert any(gap.contains(at) for at in lacks)


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 1_000), marks=pytest.mark.thorough)])
@pytest.mark.parametrize("days", [MIN_DAYS, 90])
def test_whatever_the_seed_events_have_days_of_their_own(days: int, seeds: range) -> None:
    chosen = Counter[str]()
    for seed in seeds:
        fleet = Fleet(seed=seed, last=LAST, days=days)
        events = draw_events(fleet)
        [attack], [release], [outage] = events.attacks, events.releases, events.outages
        of_servers = [*attack.days, *release.days, *outage.days]
        of_mailservers = [day for gap in events.gaps for day in gap.days]
        assert len(set(of_servers)) == len(of_servers)
        assert len(set(of_mailservers)) == len(of_mailservers)
        assert fleet.day(QUIET_DAYS) <= min(of_servers) <= max(of_servers) <= fleet.last
        assert fleet.first < min(of_mailservers) <= max(of_mailservers) < fleet.last
        assert len(attack.days) == len(outage.days) == 1
        for event in (attack, release, outage, *events.gaps):
            assert event.days[0] == event.begin.date()
            assert event.days[-1] == (event.end - timedelta(microseconds=1)).date()
        chosen.update((f"attack {attack.server}", f"outage {outage.server}", release.implementation))
        truth = GroundTruth(fleet=fleet, events=events)
        assert decode_truth(encode_truth(truth)) == truth
        assert len(list(story_entries(truth))) == 6
    assert len(chosen) == 2 * len(MAILBOX_SERVERS) + 2


def test_each_usage_record_was_made_by_the_rules(demo: Demo) -> None:
    for function, table in USAGE_TABLES.items():
        rows = sum(demo.rows(server.name, f"SELECT count(*) FROM {table}")[0][0] for server in MAILBOX_SERVERS)
        assert rows == demo.records[function] > 0
    results = Counter[str]()
    for server in MAILBOX_SERVERS:
        sql = "SELECT result, waiting_time, total_time FROM usage_mailboxes"
        for result, waiting, total in demo.rows(server.name, sql):
            results[result] += 1
            assert 0 <= (waiting or 0) <= total
            assert result not in {"happy", "scary"} or waiting is not None  # these take two
            assert result != "pruney" or total > Serve().prune_after
    assert set(results) == {"happy", "lonely", "errory", "scary", "pruney", "crowded"}
    assert results["happy"] > 0.9 * (results.total() - results["errory"] - results["lonely"])


def test_the_relay_recorded_its_transfers_and_what_strangers_did(demo: Demo) -> None:
    file = demo.folder / SOURCES / RELAY / "relay.sqlite"
    results = Counter[str]()
    for result, started, waiting, total, size in select(
        file, "SELECT result, started, waiting_time, total_time, total_bytes FROM transfers WHERE origin = ''"
    ):
        results[result] += 1
        assert SMALL.begin <= started < started + total < SMALL.end
        assert (result == "happy") == (waiting is not None) == (size > 0)
        assert 0 <= (waiting or 0) <= total
    assert set(results) == {*RESULTS}
    assert results["happy"] > 0.5 * results.total()
    month = SMALL.last.replace(day=1)
    bytes_of_month = f"SELECT sum(total_bytes) FROM transfers WHERE started + total_time >= {midnight(month)}"
    assert select(file, "SELECT month, month_bytes FROM traffic") == [
        (f"{month:%Y-%m}", *select(file, bytes_of_month)[0])
    ]


def test_envelopes_are_accepted_by_a_node(demo: Demo) -> None:
    for name in MAILSERVERS:
        for arrived, raw in demo.archived(name).values():
            assert judge(parse(raw), arrived, Policy()).refusal is None
        assert called("waku", "check", "--data", demo.folder / SOURCES / name).returncode == 0


def test_timing_logs_and_the_trace_are_of_the_same_commands(demo: Demo) -> None:
    folder = demo.folder / SOURCES / PROBED_SERVER
    lines = [read_line(line) for line in (folder / served.TRACE_FILE).read_bytes().splitlines()]
    traced = {(line.id, line.command, round(line.server_rx, 6)) for line in lines}
    begin = SMALL.end - served.TRACED_DAYS * 86_400
    assert all(begin <= line.server_rx < SMALL.end for line in lines)
    logs = sorted((folder / served.LOGS_FOLDER).glob("*.json"))
    roles = Counter[str]()
    for log in logs:
        events = [read_event(item.raw) for item in log_items(log.read_bytes())]
        roles.update(event.role for event in events if event.role)
        assert {"pake1", "pake2", "transit connect"} <= {event.name for event in events}
        for event in events:
            added = event.server_rx if event.name == "ws_receive" and event.command == "message" else None
            if added is not None and added >= begin + 60:
                assert (event.id, "add", round(added, 6)) in traced
    assert roles["sender"] == roles["receiver"] == len(logs) / 2 > 0


def content(folder: Path) -> dict[str, bytes]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_the_same_seed_makes_the_same_bytes_anywhere_at_any_time_and_after_a_killed_run(tmp_path: Path) -> None:
    folder, other_folder = tmp_path / "here", tmp_path / "there"
    with patch("time.time", lambda: 4_000_000_000.0):  # in another year
        truth = make_demo(TINY, folder, lambda _: None, processes=1)
    unfinished = other_folder / UNFINISHED / "north" / "data"
    unfinished.mkdir(parents=True)
    (unfinished / "restante.sqlite").write_text("half of it")
    (other_folder / UNFINISHED / TRUTH).write_text("{")
    (other_folder / UNFINISHED / "lock").touch()
    assert find_demo(other_folder) is None
    program = "from demo.test_fleet import *; make_demo(TINY, Path(sys.argv[1]), print, processes=2)"
    process = run(sys.executable, "-c", program, other_folder, variables={"PYTHONHASHSEED": "2"})
    assert process.returncode == 0, process.stderr
    files, other_files = content(folder), content(other_folder)
    assert list(files) == list(other_files)
    assert [name for name in files if files[name] != other_files[name]] == []
    assert find_demo(other_folder) == truth
    assert [path.name for path in other_folder.iterdir()] == [SOURCES]
    names = {path.name for path in (other_folder / SOURCES).iterdir()}
    assert names == {TRUTH, *MAILSERVERS, *(server.name for server in MAILBOX_SERVERS), RELAY}
    assert draw_events(replace(TINY, seed=8)) != truth.events


def test_a_full_disk_is_one_sentence_and_makes_no_fleet(tmp_path: Path) -> None:
    no_space = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    failing = patch("restante.demo.usage.simulate_server", side_effect=no_space)
    with failing, pytest.raises(StoreError, match="No space left"):
        make_demo(TINY, tmp_path, lambda _: None, processes=1)
    assert find_demo(tmp_path) is None


def test_two_demos_are_not_made_in_one_folder_at_a_time(tmp_path: Path) -> None:
    (tmp_path / UNFINISHED).mkdir()
    lock = lock_file(tmp_path / UNFINISHED / "lock")
    try:
        with patch("restante.pipeline.cli.run.end_run_on_signals") as handled, pytest.raises(InUse, match="another"):
            pipeline_demo(tmp_path)
        assert not handled.called, "Ctrl-C would remove what the other one has made"
    finally:
        os.close(lock)


def test_an_unfinished_folder_that_no_demo_made_stays(tmp_path: Path) -> None:
    (tmp_path / "precious" / "deeds").mkdir(parents=True)
    linked, theirs = tmp_path / "linked", tmp_path / "theirs"
    linked.mkdir()
    (linked / UNFINISHED).symlink_to(tmp_path / "precious")
    (theirs / UNFINISHED / "deeds").mkdir(parents=True)
    for folder in (linked, theirs):
        with pytest.raises(Misuse, match="was not made by a demo: remove it, or name another folder"):
            make_demo(TINY, folder, lambda _: None, processes=1)
        assert [path.name for path in (folder / UNFINISHED).iterdir()] == ["deeds"]
    with patch("os.getuid", lambda: 4_000_000), pytest.raises(Misuse, match="was not made by a demo"):
        make_demo(TINY, tmp_path / "new", lambda _: None, processes=1)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.thorough)])
def test_no_process_goes_on_after_a_signal(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "demo"
    command = (*RESTANTE, "pipeline", "demo", str(folder), "--days", "90", "--last", str(LAST))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        wait_until((folder / UNFINISHED / "north").exists)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        assert children
        running.send_signal(number)
        output, errors = running.communicate(timeout=PATIENCE)
    assert output == ""
    if number == signal.SIGTERM:
        assert running.returncode == 128 + number
        assert errors == "restante: stopped; committed rows stay; run this again to do the rest\n"
        assert list(folder.iterdir()) == []
    wait_until(lambda: not any(Path(f"/proc/{child}/exe").exists() for child in children))
    assert find_demo(folder) is None
