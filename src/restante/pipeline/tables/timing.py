"""Where the time goes: compares a client's log with the trace of its server, phase by phase.

For each command that a client sent:

    network out   from sending at the client to receipt at the server
    commit        from receipt until durable: the previous batch and its own; absent if it changed nothing
    queue         from durable (or from receipt, if it changed nothing) to the answer
    network in    from the answer to its receipt at the client; also for messages of the other side
    round trip    the four together, by the client's own clock

and for what the client did meanwhile: human (it waited for its user), crypto, transit connect, transfer.

The server's part is known if its trace has the command: the same id, and the same server_rx (from the message's own
echo) or, for commands without an echo, the same server_tx. The network's parts need both clocks. The offset between a
log and its server is estimated per day as in NTP (RFC 5905, section 8). Of all exchanges sent at t0, received at t1,
answered at t2, with the answer received at t3, take that with the least delay (t3 - t0) - (t2 - t1). Its offset
is ((t1 - t0) + (t2 - t3)) / 2, with an error of at most half that delay, since one direction may have taken all of
it. The table has the offset as seen from the server: `offset_us` is how far the client's clock is ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from restante.pipeline.schemas import MICROSECONDS, SOURCE_COLUMN, Column, Table, day_of
from restante.pipeline.tables import buckets
from restante.pipeline.tables.build import Build

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

MAX_APART_US: Final = 86_400_000_000
"""Microseconds by which an answer, or the server's clock, may differ from the sending: a day is read with its
neighbours."""

MAX_EPOCH_SECONDS: Final = 1e11
"""Seconds since 1970 that no clock shows (the year 5138), positive or negative. Anyone may write 1e300 into a log,
which in microseconds, or as a difference, would not fit into a BIGINT."""

STAMP_TOLERANCE_SECONDS: Final = 1.5e-6
"""Seconds by which a server_tx may differ from the trace's: messages carry it in whole microseconds."""

EXCHANGE_PHASES: Final = ("network out", "commit", "queue", "network in", "round trip")
SPAN_PHASES: Final = {"transit connect": "transit connect", "tx file": "transfer", "rx file": "transfer"}
"""Events of the reference client (0.24.0) with an end and no `waiting`, and their phases."""

WAIT_PHASES: Final = {"user": "human", "crypto": "crypto"}

ALL_PHASES: Final = tuple(dict.fromkeys((*EXCHANGE_PHASES, *SPAN_PHASES.values(), *WAIT_PHASES.values())))

SERVER_COLUMN: Final = Column(
    "server",
    "STRING",
    "Source of the server's trace, as given in --source NAME@SERVER. NULL: none was given.",
    null=True,
)
PHASE_COLUMN: Final = Column(
    "phase", "STRING", f"What took the time: {', '.join(ALL_PHASES)}. docs/pipeline/tables.md explains each."
)

TIMING: Final = Table(
    "timing",
    "phase of an event in a client's timing log",
    (
        Column("file", "STRING", "Identifies the timing log: SHA-256 of the file."),
        Column("id", "BIGINT", "Position of the event in its log, from 0."),
        SERVER_COLUMN,
        Column(
            "what",
            "STRING",
            "Type of the command that the client sent; message: a message of the other side;"
            " otherwise the name of the event.",
        ),
        PHASE_COLUMN,
        Column(
            "us",
            "BIGINT",
            "Duration. Below 0: the clocks drifted apart. NULL: not known.",
            null=True,
            unit=MICROSECONDS,
        ),
        Column(
            "error_us",
            "BIGINT",
            "Largest possible error of the duration, for network out and network in. NULL: another phase, or not"
            " known.",
            null=True,
            unit=MICROSECONDS,
        ),
        Column(
            "offset_us",
            "BIGINT",
            "How far the client's clock was ahead of the server's, for this log and day. Below 0: it was behind."
            " NULL: the log has no exchange that shows it.",
            null=True,
            unit=MICROSECONDS,
        ),
        day_of("the event, by the client's clock"),
        SOURCE_COLUMN,
    ),
)
"""Invariants: where the parts of a round trip are known, they add up to it, except for rounding; each log and day has
one `offset_us`."""

TIMES: Final = Table(
    "times",
    "client's source, server, day, phase and bucket",
    (
        *(SERVER_COLUMN, PHASE_COLUMN, buckets.BUCKET_COLUMN, buckets.FROM_COLUMN),
        Column("count", "BIGINT", "Durations in the bucket; where bucket is NULL, durations that are not known."),
        *(day_of("the events, by the client's clock"), SOURCE_COLUMN),
    ),
)
"""Invariant: `count` adds up to the rows of timing."""

_LOG_KEY: Final = ("source", "file")
_EVENT_KEY: Final = (*_LOG_KEY, "id", "day", "server")
_ROW_COLUMNS: Final = (*_EVENT_KEY, "what", "phase", "us", "error_us", "offset_us")


def timing(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return the duration of each phase of each event."""
    events = inputs["client_events"]
    sent = _with_partner(_exchanges(events), inputs["server_commands"])
    offsets = _offsets(sent)
    phases = _phases(_by_clock(sent, offsets))
    heard = _heard(_by_clock(_messages_of_others(events), offsets))
    return phases.unionAll(heard).unionAll(_by_clock(_spans(events), offsets.drop("error_us")).select(*_ROW_COLUMNS))


def _us(seconds: str) -> Expression:
    """Return a time in microseconds; NULL if it is not a time."""
    return f.when(f.abs(seconds) < MAX_EPOCH_SECONDS, f.floor(f.col(seconds) * 1_000_000 + 0.5))


def _exchanges(events: DataFrame) -> DataFrame:
    """Return each sent command with its ack, or else its echo, and the time at which the server received it."""
    sent = events.where("name = 'ws_send'").select(*_EVENT_KEY, "command", "command_id", _us("start").alias("t0"))
    heard = events.where("name = 'ws_receive' AND (command = 'ack' OR command = 'message' AND own)").select(
        *(*_LOG_KEY, "command_id", (f.col("command") == "ack").alias("acks")),
        *("server_rx", "server_tx", _us("start").alias("t3")),
    )
    ack, echo = f.col("acks"), ~f.col("acks")
    in_time = f.col("t3").between(f.col("t0"), f.col("t0") + MAX_APART_US)
    paired = sent.join(heard, [*_LOG_KEY, "command_id"], "left")
    reply = f.struct("t3", "server_tx")
    return (
        paired.groupBy(*_EVENT_KEY, "command", "command_id", "t0")
        .agg(
            f.min(f.when(ack & in_time, reply)).alias("ack"),
            f.min(f.when(echo & in_time, reply)).alias("echo"),
            f.min(f.when(echo & in_time, f.col("server_rx"))).alias("rx"),
        )
        .withColumn("reply", f.coalesce("ack", "echo"))
        .select(
            *_EVENT_KEY, "command", "command_id", "t0", "rx", f.col("reply.t3"), f.col("reply.server_tx").alias("tx")
        )
    )


def _with_partner(sent: DataFrame, commands: DataFrame) -> DataFrame:
    """Add the line of each command in the trace of the named server: the first that matches."""
    line = f.struct("server_rx", "commit", "server_tx").alias("line")
    lines = commands.select(f.col("source").alias("server"), "command_id", line)
    echoed = f.col("line.server_rx") == f.col("rx")
    answered = f.col("rx").isNull() & (f.abs(f.col("line.server_tx") - f.col("tx")) < STAMP_TOLERANCE_SECONDS)
    near = f.abs(f.col("line.server_rx") * 1_000_000 - f.col("t0")) <= MAX_APART_US
    columns = [*_EVENT_KEY, "command", "t0", "rx", "t3", "tx"]
    found = (
        sent.join(lines, ["server", "command_id"], "left")
        .groupBy(*columns)
        .agg(f.min(f.when((echoed | answered) & near, f.col("line"))).alias("line"))
    )
    times = found.select(
        *(*_EVENT_KEY, "command", "t0", "t3"),
        f.coalesce("rx", "line.server_rx").alias("rx"),
        f.col("tx"),
        f.col("line").isNotNull().alias("traced"),
        *(f.col(f"line.{each}").alias(each) for each in ("server_rx", "commit", "server_tx")),
    )
    return times.withColumns({each: _us(each) for each in ("rx", "tx", "server_rx", "commit", "server_tx")})


def _offsets(sent: DataFrame) -> DataFrame:
    """Return the offset of each log's clock per day: subtract it from the client's time to get the server's."""
    delay = (f.col("t3") - f.col("t0")) - (f.col("tx") - f.col("rx"))
    offset = f.floor(((f.col("rx") - f.col("t0")) + (f.col("tx") - f.col("t3"))) / 2)
    known = sent.select(*_LOG_KEY, "day", f.struct(delay.alias("delay"), offset.alias("offset")).alias("best"))
    best = (
        known.where("best.delay >= 0 AND best.offset IS NOT NULL")
        .groupBy(*_LOG_KEY, "day")
        .agg(f.min("best").alias("best"))
    )
    error = f.ceil(f.col("best.delay") / 2).alias("error_us")
    return best.select(*_LOG_KEY, "day", (-f.col("best.offset")).alias("offset_us"), error)


def _by_clock(rows: DataFrame, offsets: DataFrame) -> DataFrame:
    return rows.join(offsets, [*_LOG_KEY, "day"], "left")


def _messages_of_others(events: DataFrame) -> DataFrame:
    """Return the messages that this client did not send."""
    heard = events.where("name = 'ws_receive' AND command = 'message' AND NOT own")
    return heard.select(*_EVENT_KEY, "command", _us("start").alias("t3"), _us("server_tx").alias("tx"))


def _phases(sent: DataFrame) -> DataFrame:
    error, none = f.col("error_us"), f.lit(None)
    traced = f.col("traced")
    measured = {
        "network out": (f.col("rx") - f.col("t0") + f.col("offset_us"), error),
        "commit": (f.when(traced, f.col("commit") - f.col("server_rx")), none),
        "queue": (f.when(traced, f.col("server_tx") - f.coalesce("commit", "server_rx")), none),
        "network in": (f.col("t3") - f.col("offset_us") - f.col("tx"), error),
        "round trip": (f.col("t3") - f.col("t0"), none),
    }
    phases = f.explode(f.array(*(_phase(name, *measured[name]) for name in EXCHANGE_PHASES)))
    rows = sent.select(
        *_EVENT_KEY, f.col("command").alias("what"), "traced", "commit", phases.alias("each"), "offset_us"
    )
    unchanged = (f.col("each.phase") == "commit") & f.col("traced") & f.col("commit").isNull()
    return rows.where(~unchanged).select(*_EVENT_KEY, "what", "each.*", "offset_us")


def _heard(theirs: DataFrame) -> DataFrame:
    way = _phase("network in", f.col("t3") - f.col("offset_us") - f.col("tx"), f.col("error_us"))
    rows = theirs.select(*_EVENT_KEY, f.col("command").alias("what"), way.alias("each"), "offset_us")
    return rows.select(*_EVENT_KEY, "what", "each.*", "offset_us")


def _spans(events: DataFrame) -> DataFrame:
    phase = f.lit(None).cast("string")
    for name, called in SPAN_PHASES.items():
        phase = f.when(f.col("name") == name, called).otherwise(phase)
    for whom, called in WAIT_PHASES.items():
        phase = f.when(f.col("waiting") == whom, called).otherwise(phase)
    spans = events.select(
        *_EVENT_KEY, f.col("name").alias("what"), phase.alias("phase"), (_us("stop") - _us("start")).alias("us")
    )
    return spans.where(f.col("phase").isNotNull()).withColumn("error_us", f.lit(None).cast("bigint"))


def _phase(name: str, us: Expression, error: Expression) -> Expression:
    us, error = us.cast("bigint"), error.cast("bigint")
    known = f.when(us.isNotNull(), error)
    return f.struct(f.lit(name).alias("phase"), us.alias("us"), known.alias("error_us"))


def times(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return the number of timing's rows by phase and bucket."""
    keys = ("source", "day", "server", "phase", "bucket")
    rows = inputs["timing"].withColumn("bucket", buckets.bucket(f.col("us")))
    return rows.groupBy(*keys).agg(f.count("*").alias("count")).withColumn("from_us", buckets.least(f.col("bucket")))


BUILDS: Final = (
    Build(TIMING, {"client_events": (0, 1), "server_commands": (1, 1)}, timing),
    Build(TIMES, {"timing": (0, 0)}, times),
)
