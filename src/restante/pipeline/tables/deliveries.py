"""Messages from client to client: which two timing logs belong together, and when each message was received.

docs/timing/specification.md, "Deliveries" and "Transfers", specifies it. restante.timing.model.deliveries does the
same in Python for two logs that are known to belong together, and tests/vectors/deliveries.json tests both.

The lake has no sides and no mailbox ids. A message is recognised by the id that its author gave it, its phase, and
the time at which the server received it, which the author's log shows (timing's `network out`) and the peer's has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from restante.pipeline.schemas import MICROSECONDS, SOURCE_COLUMN, Column, Table, day_of
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.timing import SERVER_COLUMN, us_of
from restante.timing.model.exchanges import MAX_APART_US, US_PER_DAY
from restante.timing.model.phases import NETWORK_IN, NETWORK_OUT

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

DELIVERIES: Final = Table(
    "deliveries",
    "message of a client that another client received",
    (
        Column("file", "STRING", "Identifies the timing log of the client that sent it: SHA-256 of the file."),
        Column("id", "BIGINT", "Position of the command in that log, from 0."),
        SERVER_COLUMN,
        Column(
            "peer_file", "STRING", "Identifies the timing log of the client that received it: SHA-256 of the file."
        ),
        Column("peer_source", "STRING", "Name of the source of that log, as given in --source."),
        Column("peer_id", "BIGINT", "Position of the first frame with the message in that log, from 0."),
        Column("phase", "STRING", "Phase of the message: pake, version, a number, dilate-N, or other."),
        Column("sent", "TIMESTAMP", "When it was sent, by the clock of the client that sent it."),
        Column("server_rx", "TIMESTAMP", "When the server received it, by the server's clock, to the microsecond."),
        Column("received", "TIMESTAMP", "When it was received, by the clock of the client that received it."),
        Column("network_out_us", "BIGINT", "Time from the sending until the server received it.", unit=MICROSECONDS),
        Column(
            "at_server_us",
            "BIGINT",
            "Time from the receipt by the server until it sent the message to the peer: the commit, and the time"
            " until the peer was there. NULL: not known.",
            null=True,
            unit=MICROSECONDS,
        ),
        Column(
            "network_in_us",
            "BIGINT",
            "Time from then until the peer received it. NULL: not known, because the peer's log has no exchange of"
            " that day that shows its clock's offset, or the frame does not say when it was sent.",
            null=True,
            unit=MICROSECONDS,
        ),
        Column(
            "us",
            "BIGINT",
            "Time from the sending to the receipt: the three together. Below 0: a clock was set, or the clocks"
            " drifted apart. NULL: network_in_us is NULL.",
            null=True,
            unit=MICROSECONDS,
        ),
        Column(
            "error_us",
            "BIGINT",
            "Largest possible error of us, if no clock is set, and each client's clock and the server's drift apart"
            " by 30 ppm at most. NULL: us is not known.",
            null=True,
            unit=MICROSECONDS,
        ),
        Column(
            "offset_us",
            "BIGINT",
            "How far the clock of the client that sent it was ahead of the server's. Below 0: it was behind.",
            unit=MICROSECONDS,
        ),
        Column(
            "peer_offset_us",
            "BIGINT",
            "The same of the client that received it. NULL: not known.",
            null=True,
            unit=MICROSECONDS,
        ),
        day_of("server_rx, by the server's clock"),
        SOURCE_COLUMN,
    ),
)
"""Invariants: `network_out_us`, `at_server_us` and `network_in_us` add up to `us` if all are known; `network_out_us`
and `network_in_us` are those of timing. On a day a log has rows with one other log only."""

_MESSAGE: Final = ("command_id", "phase", "rx")
"""What tells messages apart."""


def deliveries(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return the messages of which the lake has the sending and the receipt, in two logs that belong together."""
    sent, received = _messages(inputs["client_events"], inputs["timing"])
    near = (f.abs(f.col("t0") - f.col("rx")) <= MAX_APART_US) & (f.abs(f.col("t3") - f.col("rx")) <= MAX_APART_US)
    first = f.struct("t3", "tx", "peer_id", "network_in_us", "peer_offset_us", "peer_error_us")
    author = ("source", "file", "id", "server", "phase", "t0", "rx", "network_out_us", "offset_us", "author_error_us")
    found = (
        sent.join(received, list(_MESSAGE))
        .where(near)
        .groupBy(*author, "peer_source", "peer_file")
        .agg(f.min(first).alias("first"))
        .withColumn("day", _day(f.col("rx")))
    )
    only = _only_partners(found)
    pairs = found.join(only, ["day", "file", "peer_file"], "left_semi").join(
        only.select("day", f.col("peer_file").alias("file"), f.col("file").alias("peer_file")),
        ["day", "file", "peer_file"],
        "left_semi",
    )
    at_server = f.col("first.tx") - f.col("rx")
    times = {"sent": f.col("t0"), "server_rx": f.col("rx"), "received": f.col("first.t3")}
    return pairs.select(
        *("file", "id", "server", "peer_file", "peer_source", f.col("first.peer_id"), "phase"),
        *(f.timestamp_micros(time).alias(name) for name, time in times.items()),
        *("network_out_us", at_server.alias("at_server_us"), f.col("first.network_in_us")),
        (f.col("network_out_us") + at_server + f.col("first.network_in_us")).alias("us"),
        (f.col("author_error_us") + f.col("first.peer_error_us")).alias("error_us"),
        *("offset_us", f.col("first.peer_offset_us"), "day", "source"),
    )


def _day(us: Expression) -> Expression:
    return f.date_add(f.lit("1970-01-01").cast("date"), f.floor(us / US_PER_DAY).cast("int"))


def _messages(events: DataFrame, timing: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the messages that clients sent, and those of others that they received.

    If several sources have the same log, one copy counts: one that names a server, then the source that sorts first.
    """
    copy = f.struct(f.col("server").isNull(), "source")
    is_sent = f.expr("name = 'ws_send' AND command = 'add'")
    is_received = f.expr("name = 'ws_receive' AND command = 'message' AND NOT own")
    chosen = (
        events.withColumn("chosen", f.min(copy).over(Window.partitionBy("file", "day")))
        .where((f.col("chosen.source") == f.col("source")) & (is_sent | is_received))
        .select(
            *("source", "file", "id", "day", "server", "name", "command_id", "phase"),
            *(us_of("start").alias("at"), us_of("server_rx").alias("rx"), us_of("server_tx").alias("tx")),
        )
    )
    ways = f.expr(f"what = 'add' AND phase = '{NETWORK_OUT}' OR what = 'message' AND phase = '{NETWORK_IN}'")
    known = timing.where(ways).select("source", "file", "id", "day", "us", "error_us", "offset_us")
    messages = chosen.join(known, ["source", "file", "id", "day"])
    sent = messages.where("name = 'ws_send' AND us IS NOT NULL").select(
        *("source", "file", "id", "server", "command_id", "phase", f.col("at").alias("t0")),
        (f.col("at") + f.col("us") - f.col("offset_us")).alias("rx"),
        *(f.col("us").alias("network_out_us"), "offset_us", f.col("error_us").alias("author_error_us")),
    )
    received = messages.where("name = 'ws_receive' AND rx IS NOT NULL").select(
        *(*_MESSAGE, f.col("at").alias("t3"), "tx", f.col("us").alias("network_in_us")),
        *(f.col(name).alias(f"peer_{name}") for name in ("source", "file", "id", "offset_us", "error_us")),
    )
    return sent, received


def _only_partners(found: DataFrame) -> DataFrame:
    """Return each log with the one other log with which it shares messages on a day; none if there are several.

    A log that received its own messages as those of the other side has the events of both, and is its own partner.
    """
    ways = (("file", "peer_file"), ("peer_file", "file"))
    first, second = (
        found.select("day", f.col(log).alias("file"), f.col(partner).alias("peer_file")) for log, partner in ways
    )
    partners = first.unionAll(second).groupBy("day", "file")
    return (
        partners.agg(f.min("peer_file").alias("peer_file"), f.max("peer_file").alias("last"))
        .where("peer_file = last AND peer_file <> file")
        .drop("last")
    )


BUILDS: Final = (Build(DELIVERIES, {"client_events": (1, 1), "timing": (1, 1)}, deliveries),)
