"""Built tables: case by case, and what holds for all of them.

A Spark job costs a second, whatever it reads. So one job builds all cases of a table, each on days or at sources of
its own, and each test compares the rows of its case.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from restante.pipeline.tables import BUILDS, buckets, envelopes
from restante.pipeline.tables.outcomes import FAILURES
from restante.pipeline.tables.top_n import MAX_NAMES
from support.pipeline.busy_week import TODAY, busy_week, crowd, delivery_cases, timing_cases
from support.pipeline.tables import (
    CASES,
    FIRST,
    SPAN,
    Inputs,
    Values,
    apart,
    collected,
    column_names,
    dicts,
    frame,
    input_names,
    parted,
    rows,
    with_folders,
)

NAMED: Final = ["outcomes", "durations", "failures", "versions", "addresses"]

OF_LOGS: Final = ("timing", "deliveries", "transfers")
"""Tables that are made of logs, which have vectors of their own (tests/vectors)."""

WEEK: Final = "a busy week"
DAYS: Final = (TODAY.date(), TODAY.date() - timedelta(2))
LEFT_OUT: Final = TODAY.date() - timedelta(1)

Made = Callable[[str], Mapping[str, Counter[Values]]]


@pytest.fixture(scope="module", autouse=True)
def a_thousand_rows_make_a_folder_of_an_hour() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelopes, "MIN_HOUR_ROWS", 1000)
        yield


@cache
def cases_of(name: str) -> Mapping[str, tuple[Inputs, Counter[Values]]]:
    cases = {}
    for case, tables in json.loads((CASES / f"{name}.json").read_text()).items():
        inputs = {table: rows(table, records) for table, records in tables.items() if table != "expected"}
        cases[case] = inputs, Counter(rows(name, tables["expected"]))
    if name == "timing":
        return {**cases, **timing_cases()}
    return {**cases, **delivery_cases(name)} if name in OF_LOGS else cases


@cache
def week() -> Inputs:
    return busy_week(Random(1), rows=600)


@cache
def strangers() -> Inputs:
    """Return a day on which clients name more applications and versions than are counted one by one."""
    return crowd(Random(5), names=5 * MAX_NAMES // 2)


@cache
def inputs_of(name: str) -> Mapping[str, Inputs]:
    cases = {case: inputs for case, (inputs, _) in cases_of(name).items()}
    if name not in OF_LOGS:
        cases[WEEK] = week()
    if name in (*NAMED, "gaps"):
        cases["strangers"] = strangers()
    return {case: with_folders(BUILDS[name], inputs) for case, inputs in cases.items()}


@cache
def alone(name: str) -> Mapping[tuple[str, date], Inputs]:
    build = BUILDS[name]
    days = [(case, day) for case, (_, values) in cases_of(name).items() for day in sorted({*map(of(name), values)})]
    days += [(WEEK, day) for day in DAYS] * (WEEK in inputs_of(name))
    return {
        (case, day): {
            table: [
                row
                for row in inputs_of(name)[case].get(table, ())
                if of(table)(row) in (build.reads(table, {day}) if table in build.inputs else {day})
            ]
            for table in input_names(build)
        }
        for case, day in days
    }


def of(table: str) -> Callable[[Values], date]:
    at = column_names(table).index("day")
    return lambda row: row[at]


def together(name: str, cases: Mapping[Any, Inputs]) -> dict[str, list[Values]]:
    return {
        table: [
            row
            for number, inputs in enumerate(cases.values(), 1)
            for row in apart(number, table, inputs.get(table, ()))
        ]
        for table in input_names(BUILDS[name])
    }


@pytest.fixture(scope="module")
def made(spark: SparkSession) -> Made:

    @cache
    def make(name: str) -> Mapping[Any, Counter[Values]]:
        cases: dict[Any, Inputs] = {**inputs_of(name), **alone(name)}
        inputs = together(name, cases)
        frames = {table: frame(spark, table, values) for table, values in inputs.items()}
        by_number = parted(name, collected(BUILDS[name].rows(frames)))
        assert by_number.keys() <= set(range(1, len(cases) + 1)), "there are rows of no case"
        return {case: by_number.get(number, Counter()) for number, case in enumerate(cases, 1)}

    return make


@pytest.mark.parametrize("name", BUILDS)
def test_a_case_gives_the_rows_that_it_expects(made: Made, name: str, subtests: pytest.Subtests) -> None:
    """tests/timing tests the vectors of timing and deliveries in Python."""
    for case, (_, expected) in cases_of(name).items():
        with subtests.test(case):
            assert made(name)[case] == expected


@pytest.mark.parametrize("name", BUILDS)
def test_a_day_built_alone_is_as_in_a_full_build(made: Made, name: str, subtests: pytest.Subtests) -> None:
    cases: Mapping[Any, Counter[Values]] = made(name)
    for case, day in alone(name):
        with subtests.test(f"{case}: {day}"):
            full, apart_ = (
                {row: n for row, n in cases[key].items() if of(name)(row) == day} for key in (case, (case, day))
            )
            assert apart_ == full


ADD_UP: Final = [
    ("outcomes", "ended", ("nameplates", "mailboxes")),
    ("failures", "ended", ("nameplates", "mailboxes")),
    ("durations", "count", ("nameplates", "mailboxes") * 2),
    ("pressure", "started", ("nameplates", "live nameplate")),
    ("mailbox_pressure", "started", ("mailboxes", "live mailbox")),
    ("busy_hours", "connections", ("client_versions",)),
    ("busy_hours", "mailboxes", ("mailboxes",)),
    ("busy_hours", "nameplates", ("nameplates",)),
    ("addresses", "connections", ("client_versions",) * 2),
    ("versions", "connections", ("client_versions",)),
    ("versions", "mailboxes", ("mailboxes",)),
    ("relay_hours", "ended", ("relay_transfers",)),
    ("times", "count", ("timing",)),
    ("traffic", "envelopes", ("envelopes",)),
]
"""Columns that add up to the rows that were read, or to the counts of a kind of what is live."""


@pytest.mark.parametrize(("name", "column", "counted"), ADD_UP)
def test_counts_add_up_to_the_rows_read(made: Made, name: str, column: str, counted: tuple[str, ...]) -> None:
    live = Counter[str]()
    for row in dicts("live", week()["live"]):
        live[f"live {row['kind']}"] += row["count"]
    expected = sum(live[name] if name in live else len(week()[name]) for name in counted)
    assert sum(row[column] for row in dicts(name, made(name)[WEEK].elements())) == expected


@pytest.mark.parametrize(
    ("hourly", "daily", "key", "counts"),
    [
        ("failures", "outcomes", ("app_id", "kind", "day", "source"), ("ended", *FAILURES)),
        ("hourly_coverage", "coverage", ("day", "source"), ("envelopes", "alone", "missing")),
    ],
)
def test_hours_add_up_to_the_day(
    made: Made, hourly: str, daily: str, key: tuple[str, ...], counts: tuple[str, ...]
) -> None:
    of_hours, of_days = Counter[Any](), Counter[Any]()
    for name, total in ((hourly, of_hours), (daily, of_days)):
        for row in dicts(name, made(name)[WEEK]):
            total.update({(*(row[column] for column in key), count): row[count] for count in counts})
    days = {key[:-1] for key in of_days}
    assert days
    assert {key: n for key, n in of_hours.items() if key[:-1] in days} == of_days


@pytest.mark.parametrize("name", NAMED)
def test_many_versions_and_applications_of_a_day_make_a_short_table(made: Made, name: str) -> None:
    table = dicts(name, made(name)["strangers"])
    assert len({row["app_id"] for row in table} - {None}) == 1001
    if name == "versions":
        assert {row["connections"] for row in table if row["app_id"] == "common"} == {10}
        of_known_ones = [row for row in table if row["attribution"] == "version"]
        assert len({row["version"] for row in of_known_ones}) == 1001
        assert len(of_known_ones) <= 2002


def test_many_topics_that_a_mailserver_lacks_make_a_short_table(made: Made) -> None:
    gaps = dicts("gaps", made("gaps")["strangers"])
    assert len({row["topic"] for row in gaps}) == 1001, "a thousand topics, and NULL for the others"
    assert sum(row["missing"] for row in gaps) == len(strangers()["archived"])
    assert [row["missing"] for row in gaps if row["topic"] == "0xffffffff"] == [10]


def spread(
    spark: SparkSession, name: str, parts: int, settings: Mapping[str, str]
) -> tuple[Counter[Values], Mapping[Values, set[int]]]:
    """Build a table from shuffled rows, each stage in so many tasks; give also the tasks of each folder."""
    build = BUILDS[name]
    dice, own = Random(parts), spark.newSession()
    adaptive = {"spark.sql.adaptive.coalescePartitions.enabled": "false"}
    for setting, value in {"spark.sql.shuffle.partitions": str(parts), **adaptive, **settings}.items():
        own.conf.set(setting, value)
    frames = {
        table: frame(own, table, dice.sample(values, len(values))).repartition(parts)
        for table, values in together(name, inputs_of(name)).items()
    }
    days = {FIRST + timedelta(number) for number in range(SPAN)} - {LEFT_OUT}
    result = collected(build.rows_to_write(frames, sorted(days)).withColumn("task", f.spark_partition_id()))
    tasks: dict[Values, set[int]] = {}
    values = Counter[Values]()
    for (*row, task), times in result.items():
        [fields] = dicts(name, [tuple(row)])
        tasks.setdefault(tuple(fields[column] for column in build.table.order), set()).add(task)
        values[tuple(row)] += times
    return values, tasks


@pytest.mark.thorough
@pytest.mark.parametrize("name", BUILDS)
def test_no_split_no_order_of_its_input_and_no_generated_code_changes_a_table(spark: SparkSession, name: str) -> None:
    """Of two splits one has few tasks, which share folders; the other has so many that some have no rows."""
    generated = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}
    few, of_few = spread(spark, name, 3, generated)
    many, of_many = spread(spark, name, 8, {})
    assert few == many
    cases = parted(name, few)
    for number, case in enumerate(inputs_of(name), 1):
        if case in cases_of(name):
            expected = cases_of(name)[case][1]
            if any(map(any, BUILDS[name].reach.values())):  # a day is made of other days' rows too
                expected = Counter({row: n for row, n in expected.items() if of(name)(row) != LEFT_OUT})
            assert cases.get(number, Counter()) == expected, case
    if BUILDS[name].task_per_folder:
        for tasks in (of_few, of_many):
            assert len(set().union(*tasks.values())) > 1, "one task alone shows nothing"
            assert all(len(numbers) == 1 for numbers in tasks.values()), "the rows of a folder are one task's"
    nothing = {table: frame(spark, table, ()) for table in input_names(BUILDS[name])}
    assert collected(BUILDS[name].rows(nothing)) == Counter(), "no rows give no rows"


def test_the_days_that_a_day_reads_mirror_the_days_that_it_affects() -> None:
    day = TODAY.date()
    for build in BUILDS.values():
        assert build.reach.keys() <= set(build.inputs)
        for name in build.inputs:
            assert all(day in build.touches(name, {read}) for read in build.reads(name, {day}))
            assert len(build.touches(name, {day})) == len(build.reads(name, {day})) <= 8


def most_rows_of_an_operator(table: DataFrame) -> tuple[Counter[Values], int]:
    """Return the rows of a table, and the most rows that an operator of its plan returned, by Spark's own metrics."""
    values = collected(table)

    def rows_of(operator: Any) -> int:
        name = operator.getClass().getSimpleName()
        if name == "AdaptiveSparkPlanExec":
            return rows_of(operator.executedPlan())
        if name.endswith("QueryStageExec"):
            return rows_of(operator.plan())
        count = operator.metrics().get("numOutputRows")
        children = (operator.children().apply(number) for number in range(operator.children().size()))
        return max([count.get().value() if count.isDefined() else 0, *map(rows_of, children)])

    return values, rows_of(table._jdf.queryExecution().executedPlan())


AT: Final = 1_773_144_000.0


def receipt(file: str, number: int, sender: str) -> dict[str, Any]:
    """Return a frame with the message of a sender."""
    log = {"file": file, "id": number, "source": "peers", "server": None}
    message = {"name": "ws_receive", "command": "message", "phase": "0", "own": False, "command_id": sender}
    return {**log, **message, "start": AT + 1 + number, "server_rx": AT, "server_tx": AT + 1}


def test_a_message_in_many_logs_costs_no_more_than_its_rows(spark: SparkSession) -> None:
    """A hundred logs that claim to have sent a message, and a hundred with ten receipts each, are no pairs."""
    many = [receipt(f"to {n}", number, "claimed") for n in range(100) for number in range(10)]
    again = [receipt("b", number, "a") for number in range(300)]  # a client that reconnected often
    senders = [("a", "a"), *((f"from {n}", "claimed") for n in range(100))]
    sent = [
        {"file": file, "name": "ws_send", "start": AT, "command": "add", "command_id": message, "phase": "0"}
        for file, message in senders
    ]
    timing: list[Values] = [
        (file, 0, "main", "add", "network out", 0, 1, 0, TODAY.date(), "logs") for file, _ in senders
    ]
    events = rows("client_events", [event | {"id": 0} for event in sent] + many + again)
    timing += [
        (event["file"], event["id"], None, "message", "network in", 5, 2, 0, TODAY.date(), "peers")
        for event in many + again
    ]
    frames = {name: frame(spark, name, values) for name, values in (("client_events", events), ("timing", timing))}
    values, most = most_rows_of_an_operator(BUILDS["deliveries"].rows(frames))
    [delivery] = dicts("deliveries", values.elements())
    assert (delivery["file"], delivery["peer_file"], delivery["peer_id"]) == ("a", "b", 0)
    assert len(events) <= most <= len(events) + len(timing)


@pytest.mark.parametrize("name", ["pressure", "mailbox_pressure", "durations", "busy_hours", "addresses"])
def test_a_table_reads_each_of_its_inputs_once(spark: SparkSession, name: str) -> None:
    frames = {table: frame(spark, table, ()) for table in BUILDS[name].inputs}
    plan = BUILDS[name].rows(frames)._jdf.queryExecution().analyzed()
    assert plan.collectLeaves().size() == len(frames)


EDGES = buckets.bucket_edges()
BY_HAND = {1: -349, 2: -314, 3: -294, 999: -1, 1000: 0, 1001: 0, 1019: 0, 1020: 1, 1021: 1}


def test_every_edge_and_its_neighbours_are_in_their_bucket(spark: SparkSession) -> None:
    assert all(before <= after for before, after in pairwise(EDGES))
    around = (edge + by for edge in EDGES for by in (-1, 0, 1))
    values = [None, 0, -5, -(10**15), 10**17, 2**63 - 1, *BY_HAND, *around]
    frame = spark.createDataFrame([(us,) for us in dict.fromkeys(values)], "us BIGINT").coalesce(1)
    bucket = buckets.bucket(f.col("us"))
    rows = frame.select("us", bucket.alias("bucket"), buckets.bucket_start(bucket).alias("least")).collect()
    assert {row["us"]: row["bucket"] for row in rows if row["us"] in BY_HAND} == BY_HAND
    for us, number, start in rows:
        if us is None:
            assert (number, start) == (None, None)
        elif us <= 0:
            assert (number, start) == (buckets.ZERO_BUCKET, 0)
        else:
            assert number == min(bisect_right(EDGES, us) + buckets.ZERO_BUCKET, buckets.LAST_BUCKET)
            assert start == EDGES[number - buckets.ZERO_BUCKET - 1]
