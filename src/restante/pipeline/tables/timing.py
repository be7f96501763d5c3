"""Where the time goes: compares a client's log with the trace of its server, phase by phase.

docs/timing/specification.md specifies it. restante.timing does the same in Python (exchanges.py, offsets.py,
phases.py), and tests/vectors/timing.json tests both. A log is identified by its source and file. Its trace is that of
the source that its `server` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from restante.pipeline.schemas import (
    BY_DAY_AND_SOURCE,
    EVENT_ID_COLUMN,
    LOG_COLUMN,
    SERVER_COLUMN,
    SOURCE_COLUMN,
    Column,
    Table,
    day_of,
    us_column,
)
from restante.pipeline.tables import buckets
from restante.pipeline.tables.build import Build
from restante.timing.model import phases
from restante.timing.model.exchanges import (
    MAX_APART_US,
    MAX_EPOCH_SECONDS,
    STAMP_TOLERANCE_SECONDS,
    US_PER_SECOND,
)
from restante.timing.model.offsets import DRIFT_PPM, ROUNDING_US
from restante.timing.model.phases import ALL_PHASES, SPAN_PHASES, WAIT_PHASES

PHASE_COLUMN: Final = Column(
    "phase", "STRING", f"What took the time: {', '.join(ALL_PHASES)}. docs/pipeline/tables.md explains each."
)

TIMING: Final = Table(
    "timing",
    "phase of an event in a client's timing log",
    (
        LOG_COLUMN,
        EVENT_ID_COLUMN,
        SERVER_COLUMN,
        Column(
            "what",
            "STRING",
            "Type of the command that the client sent, '' if it is unknown or missing; message: a message of the"
            " other side; otherwise the name of the event.",
        ),
        PHASE_COLUMN,
        us_column(
            "us", "Duration. Below 0: a clock was set, or the clocks drifted apart. NULL: not known.", null=True
        ),
        us_column(
            "error_us",
            "Largest possible error of the duration, for network out and network in, if no clock is set and the two"
            f" drift apart by {DRIFT_PPM} ppm at most. NULL: another phase, or not known.",
            null=True,
        ),
        us_column(
            "offset_us",
            "How far the client's clock was ahead of the server's, for this log and day. Below 0: it was behind."
            " NULL: the log has no exchange that shows it.",
            null=True,
        ),
        day_of("the event, by the client's clock"),
        SOURCE_COLUMN,
    ),
    BY_DAY_AND_SOURCE,
)
"""Invariants: each command has one row of `network out`, `server`, `network in` and `round trip` each. If they are
known, the first three add up to the round trip exactly, and `queue`, `commit`, `queue and commit` and `answer` add up
to `server`, except for rounding. Each log and day has one `offset_us`."""

_LOG_KEY: Final = ("source", "file")
_EVENT_KEY: Final = (*_LOG_KEY, "id", "day", "server")

_LINE_TIMES: Final = ("server_rx", "commit_began", "commit", "server_tx")

_ONE_CLOCK: Final = 0
"""A phase between two times of one clock."""
_OUT: Final = 1
"""A phase from the client's clock to the server's: the offset is added."""
_BACK: Final = -1
"""A phase from the server's clock to the client's: the offset is subtracted."""


def timing(client_events: DataFrame, server_commands: DataFrame) -> DataFrame:
    """Return the duration of each phase of each event."""
    exchanges = _add_trace_lines(_exchanges(client_events), server_commands)
    rows = _command_phases(exchanges).unionAll(_event_phases(client_events))
    offset = f.col("crosses") * f.col("offset_us")
    us = f.when(f.col("crosses") == _ONE_CLOCK, f.col("us")).otherwise(f.col("us") + offset)
    error = f.when(f.col("crosses") != _ONE_CLOCK, f.when(us.isNotNull(), f.col("error_us")))
    return rows.join(_offsets(exchanges, client_events), [*_LOG_KEY, "day"], "left").select(
        *_EVENT_KEY, "what", "phase", us.alias("us"), error.alias("error_us"), "offset_us"
    )


def us_of(seconds: str) -> Expression:
    """Return a time in microseconds; NULL if it is not a time."""
    return f.when(f.abs(seconds) < MAX_EPOCH_SECONDS, f.floor(f.col(seconds) * US_PER_SECOND + 0.5))


def _exchanges(events: DataFrame) -> DataFrame:
    """Return each sent command with its answer, and the time at which the server received it, if an echo has it.

    Commands with an ambiguous id have neither, and no `command_id`. `t0`, `rx`, `tx` and `t3` are as in
    `restante.timing.model.exchanges.Exchange`.
    """
    sent = events.where("name = 'ws_send'").select(*_EVENT_KEY, "command", "command_id", us_of("start").alias("t0"))
    uses = f.count("*").over(Window.partitionBy(*_LOG_KEY, "command_id", "day"))
    sent = sent.withColumn("command_id", f.when(uses == 1, f.col("command_id")))
    replies = events.where("name = 'ws_receive' AND (command = 'ack' OR command = 'message' AND own)").select(
        *_LOG_KEY,
        "command_id",
        (f.col("command") == "ack").alias("acks"),
        "server_rx",
        "server_tx",
        us_of("start").alias("t3"),
    )
    ack, echo = f.col("acks"), ~f.col("acks")
    in_time = f.col("t3").between(f.col("t0"), f.col("t0") + MAX_APART_US)
    reply = f.struct("t3", "server_tx")
    return (
        sent.join(replies, [*_LOG_KEY, "command_id"], "left")
        .groupBy(*_EVENT_KEY, "command", "command_id", "t0")
        .agg(
            f.min(f.when(ack & in_time, reply)).alias("ack"),
            f.min(f.when(echo & in_time, reply)).alias("echo"),
            f.min(f.when(echo & in_time, f.col("server_rx"))).alias("rx"),
        )
        .withColumn("answer", f.coalesce("ack", "echo"))
        .select(
            *_EVENT_KEY,
            "command",
            "command_id",
            "t0",
            "rx",
            f.col("answer.t3"),
            f.col("answer.server_tx").alias("tx"),
        )
    )


def _add_trace_lines(exchanges: DataFrame, commands: DataFrame) -> DataFrame:
    """Add each command's line in the trace of the named server: the earliest that matches. Times become microseconds.

    `traced` is whether there is one.
    """
    line = f.struct(*_LINE_TIMES).alias("line")
    lines = commands.select(f.col("source").alias("server"), "command_id", line)
    echoed = f.col("line.server_rx") == f.col("rx")
    answered = f.col("rx").isNull() & (f.abs(f.col("line.server_tx") - f.col("tx")) < STAMP_TOLERANCE_SECONDS)
    near = f.abs(f.col("line.server_rx") * US_PER_SECOND - f.col("t0")) <= MAX_APART_US
    exchanges = (
        exchanges.join(lines, ["server", "command_id"], "left")
        .groupBy(*_EVENT_KEY, "command", "t0", "rx", "t3", "tx")
        .agg(f.min(f.when((echoed | answered) & near, f.col("line"))).alias("line"))
    )
    times = exchanges.select(
        *_EVENT_KEY,
        "command",
        "t0",
        "t3",
        "tx",
        f.coalesce("rx", "line.server_rx").alias("rx"),
        f.col("line").isNotNull().alias("traced"),
        *(f.col(f"line.{name}").alias(name) for name in _LINE_TIMES),
    )
    return times.withColumns({name: us_of(name) for name in ("rx", "tx", *_LINE_TIMES)})


def _offsets(exchanges: DataFrame, events: DataFrame) -> DataFrame:
    """Return the offset of each log's clock for each day, and its error.

    `lower` and `upper` are bounds of the server's clock less the client's. An exchange has both; any other frame has
    the lower one only. `first` and `last` are the times between which the bounds were true.
    """
    lower_of_exchange = f.col("tx") - f.col("t3")
    of_exchanges = exchanges.where(lower_of_exchange.isNotNull()).select(
        *_LOG_KEY,
        "day",
        lower_of_exchange.alias("lower"),
        (f.coalesce("rx", "tx") - f.col("t0")).alias("upper"),
        lower_of_exchange.alias("exchange_lower"),
        f.col("t0").alias("first"),
        f.col("t3").alias("last"),
    )
    null = f.lit(None).cast("bigint")
    frames = events.where("name = 'ws_receive'").where(us_of("server_tx").isNotNull())
    of_frames = frames.select(
        *_LOG_KEY,
        "day",
        (us_of("server_tx") - us_of("start")).alias("lower"),
        null.alias("upper"),
        null.alias("exchange_lower"),
        us_of("start").alias("first"),
        us_of("start").alias("last"),
    )
    bounds = of_exchanges.unionAll(of_frames).groupBy(*_LOG_KEY, "day")
    days = bounds.agg(
        f.max("lower").alias("max_lower"),
        f.min("upper").alias("min_upper"),
        f.max("upper").alias("max_upper"),
        f.min("exchange_lower").alias("min_exchange_lower"),
        (f.max("last") - f.min("first")).alias("duration"),
    ).where("min_upper IS NOT NULL")
    lower, upper = f.col("max_lower"), f.col("min_upper")
    middle = f.shiftright(lower + upper, 1)  # rounded down, also below 0
    drift = f.ceil(f.col("duration") * DRIFT_PPM / US_PER_SECOND)
    error = f.when(lower <= upper + 2 * ROUNDING_US, f.greatest(upper - middle, middle - lower)).otherwise(
        f.greatest(lower - middle, f.col("max_upper") - middle, middle - f.col("min_exchange_lower"))
    )
    return days.select(
        *_LOG_KEY, "day", (-middle).alias("offset_us"), (error + drift + ROUNDING_US).alias("error_us")
    )


def _command_phases(exchanges: DataFrame) -> DataFrame:
    """Return the phases of commands."""
    phase = f.explode(f.array(*_phase_structs())).alias("phase_values")
    what = f.coalesce("command", f.lit("")).alias("what")
    rows = exchanges.select(*_EVENT_KEY, what, phase).where("phase_values IS NOT NULL")
    return rows.select(*_EVENT_KEY, "what", "phase_values.*")


def _phase_structs() -> Iterator[Expression]:
    """Yield structs; NULL for a phase that a command does not have."""
    t0, rx, tx, t3 = (f.col(name) for name in ("t0", "rx", "tx", "t3"))
    received, commit_began, commit, sent = (f.col(name) for name in _LINE_TIMES)
    changed, timed = f.col("traced") & commit.isNotNull(), commit_began.isNotNull()
    unchanged = f.col("traced") & commit.isNull()
    yield _phase(phases.NETWORK_OUT, rx - t0, _OUT)
    yield _phase(phases.SERVER, tx - rx)
    yield f.when(unchanged, _phase(phases.QUEUE, sent - received))
    yield f.when(changed & timed, _phase(phases.QUEUE, commit_began - received))
    yield f.when(changed & timed, _phase(phases.COMMIT, commit - commit_began))
    yield f.when(changed & ~timed, _phase(phases.QUEUE_AND_COMMIT, commit - received))
    yield f.when(changed, _phase(phases.ANSWER, sent - commit))
    yield _phase(phases.NETWORK_IN, t3 - tx, _BACK)
    yield _phase(phases.ROUND_TRIP, t3 - t0)


def _event_phases(events: DataFrame) -> DataFrame:
    """Return the phases of messages that this client did not send, and of events that have a duration."""
    phase = f.lit(None).cast("string")
    for name, span_phase in SPAN_PHASES.items():
        phase = f.when(f.col("name") == name, span_phase).otherwise(phase)
    for cause, wait_phase in WAIT_PHASES.items():
        phase = f.when(f.col("waiting") == cause, wait_phase).otherwise(phase)
    is_received = f.expr("name = 'ws_receive' AND command = 'message' AND NOT own")
    network_in = _phase(phases.NETWORK_IN, us_of("start") - us_of("server_tx"), _BACK)
    of_event = f.array(
        f.when(is_received, f.struct(f.col("command").alias("what"), network_in.alias("values"))),
        f.when(
            phase.isNotNull(),
            f.struct(f.col("name").alias("what"), _phase(phase, us_of("stop") - us_of("start")).alias("values")),
        ),
    )
    rows = events.select(*_EVENT_KEY, f.explode(of_event).alias("event")).where("event IS NOT NULL")
    return rows.select(*_EVENT_KEY, "event.what", "event.values.*")


def _phase(phase: str | Expression, us: Expression, crosses: int = _ONE_CLOCK) -> Expression:
    name = f.lit(phase) if isinstance(phase, str) else phase
    return f.struct(name.alias("phase"), us.alias("us"), f.lit(crosses).alias("crosses"))


TIMES: Final = Table(
    "times",
    "client's source, server, day, phase and bucket",
    (
        SERVER_COLUMN,
        PHASE_COLUMN,
        buckets.BUCKET_COLUMN,
        buckets.FROM_COLUMN,
        Column("count", "BIGINT", "Durations in the bucket; where bucket is NULL, durations that are not known."),
        day_of("the events, by the client's clock"),
        SOURCE_COLUMN,
    ),
)
"""Invariant: `count` adds up to the rows of timing."""


def times(timing: DataFrame) -> DataFrame:
    """Return the number of timing's rows by phase and bucket."""
    return buckets.counts_by_bucket(timing, "source", "day", "server", "phase")


# A command has up to seven phases (`_phase_structs`) and three rows in the inputs: sent, acknowledged, traced.
BUILDS: Final = (
    Build(TIMING, timing, {"client_events": (0, 1), "server_commands": (1, 1)}, growth=3, definition=3),
    Build(TIMES, times),
)
