"""Messages from client to client: which two timing logs belong together, and when each message was received.

docs/timing/specification.md, "Deliveries" and "Transfers", specifies it. restante.timing.model.timeline does the
same in Python for two logs that belong together, and tests/vectors/deliveries.json tests both.

The lake has no sides and no mailbox ids. A message is recognised by the id that its author gave it, its phase, and
the time at which the server received it, which the author's log shows (timing's `network out`) and the peer's has.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from restante.pipeline.schemas import SERVER_COLUMN, SOURCE_COLUMN, Column, Table, day_of, us_column
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.timing import us_of
from restante.timing.model.exchanges import MAX_APART_US, US_PER_DAY
from restante.timing.model.phases import NETWORK_IN, NETWORK_OUT

DELIVERIES: Final = Table(
    "deliveries",
    "message of a client that another client received",
    (
        Column(
            "file", "STRING", "Identifies the timing log of the client that sent the message: SHA-256 of the file."
        ),
        Column("id", "BIGINT", "Position of the command in the log of the client that sent the message, from 0."),
        SERVER_COLUMN,
        Column(
            "peer_file",
            "STRING",
            "Identifies the timing log of the peer, the client that received the message: SHA-256 of the file.",
        ),
        Column("peer_source", "STRING", "Name of the source of the peer's log, as given in --source."),
        Column("peer_id", "BIGINT", "Position of the first frame with the message in the peer's log, from 0."),
        Column("phase", "STRING", "Phase of the message: pake, version, a number, dilate-N, or other."),
        Column("sent", "TIMESTAMP", "When the message was sent, by the clock of the client that sent it."),
        Column("server_rx", "TIMESTAMP", "When the server received the message, by its clock, to the microsecond."),
        Column("received", "TIMESTAMP", "When the peer received the message first, by the peer's clock."),
        us_column("network_out_us", "Time from the sending of the message until the server received it."),
        us_column(
            "at_server_us",
            "Time from the receipt by the server until it sent the message to the peer: for the commit, and the time"
            " until the peer was there. NULL: not known.",
            null=True,
        ),
        us_column(
            "network_in_us",
            "Time from when the server sent the message to the peer until the peer received it. NULL: not known,"
            " because the peer's log has no exchange of that day that shows its clock's offset, or the frame does not"
            " say when it was sent.",
            null=True,
        ),
        us_column(
            "us",
            "Time from the sending to the receipt: network_out_us, at_server_us and network_in_us together. Below 0:"
            " a clock was set, or the clocks drifted apart. NULL: network_in_us is NULL.",
            null=True,
        ),
        us_column(
            "error_us",
            "Largest possible error of us, if no clock is set, and each client's clock and the server's drift apart"
            " by 30 ppm at most. NULL: us is not known.",
            null=True,
        ),
        us_column(
            "offset_us",
            "How far the clock of the client that sent the message was ahead of the server's. Below 0: it was"
            " behind.",
        ),
        us_column(
            "peer_offset_us",
            "How far the peer's clock was ahead of the server's. Below 0: it was behind. NULL: not known.",
            null=True,
        ),
        day_of("server_rx, by the server's clock"),
        SOURCE_COLUMN,
    ),
)
"""Invariants: `network_out_us`, `at_server_us` and `network_in_us` add up to `us` if all are known; `network_out_us`
and `network_in_us` are those of timing. On a day a log has rows with one other log only."""

_MESSAGE: Final = ("command_id", "phase", "rx")
"""What tells messages apart."""


def deliveries(client_events: DataFrame, timing: DataFrame) -> DataFrame:
    """Return the messages of which the lake has the sending and the receipt, in two logs that belong together."""
    messages = _of_two_logs(_messages(client_events, timing))
    at_server = f.col("first.tx") - f.col("rx")
    times = {"sent": f.col("at"), "server_rx": f.col("rx"), "received": f.col("first.at")}
    return messages.select(
        "file",
        "id",
        "server",
        f.col("first.file").alias("peer_file"),
        f.col("first.source").alias("peer_source"),
        f.col("first.id").alias("peer_id"),
        "phase",
        *(f.timestamp_micros(time).alias(name) for name, time in times.items()),
        f.col("us").alias("network_out_us"),
        at_server.alias("at_server_us"),
        f.col("first.us").alias("network_in_us"),
        (f.col("us") + at_server + f.col("first.us")).alias("us"),
        (f.col("error_us") + f.col("first.error_us")).alias("error_us"),
        "offset_us",
        f.col("first.offset_us").alias("peer_offset_us"),
        "rx_day",
        "source",
    ).withColumnRenamed("rx_day", "day")


def _messages(events: DataFrame, timing: DataFrame) -> DataFrame:
    """Return the messages that clients sent (`is_sent`), and those of others that they received, with their times.

    If several sources have the same log, one copy counts: one that names a server, then the source that sorts first.
    """
    copy = f.struct(f.col("server").isNull(), "source")
    is_sent = f.expr("name = 'ws_send' AND command = 'add'")
    is_received = f.expr("name = 'ws_receive' AND command = 'message' AND NOT own")
    chosen = (
        events.withColumn("chosen", f.min(copy).over(Window.partitionBy("file", "day")))
        .where((f.col("chosen.source") == f.col("source")) & (is_sent | is_received))
        .select(
            "source",
            "file",
            "id",
            "day",
            "server",
            "command_id",
            "phase",
            is_sent.alias("is_sent"),
            us_of("start").alias("at"),
            us_of("server_rx").alias("rx"),
            us_of("server_tx").alias("tx"),
        )
    )
    ways = f.expr(f"what = 'add' AND phase = '{NETWORK_OUT}' OR what = 'message' AND phase = '{NETWORK_IN}'")
    durations = timing.where(ways).select("source", "file", "id", "day", "us", "error_us", "offset_us")
    rx = f.when(f.col("is_sent"), f.col("at") + f.col("us") - f.col("offset_us")).otherwise(f.col("rx"))
    messages = chosen.join(durations, ["source", "file", "id", "day"]).withColumn("rx", rx)
    rx_day = f.date_add(f.lit("1970-01-01").cast("date"), f.floor(f.col("rx") / US_PER_DAY).cast("int"))
    near = f.abs(f.col("at") - f.col("rx")) <= MAX_APART_US
    return messages.dropna(subset=list(_MESSAGE)).where(near).withColumn("rx_day", rx_day).drop("day")


def _of_two_logs(messages: DataFrame) -> DataFrame:
    """Return the sent messages of logs each of which shares messages of that day with one other log only.

    `first` is the peer's first receipt. A message is never paired with its receipts: of the logs that sent it, and of
    those that received it, the least and the greatest suffice to see whether there is one of each. A log that
    received its own messages as those of the other side has the events of both, and is its own partner.
    """
    is_sent, file = f.col("is_sent"), f.col("file")
    receipt = f.struct("at", "tx", f.col("id"), "us", "offset_us", "error_us", "source", "file")
    of_message = Window.partitionBy(*_MESSAGE)
    least, greatest = (
        f.when(is_sent, of(f.when(~is_sent, file)).over(of_message)).otherwise(
            of(f.when(is_sent, file)).over(of_message)
        )
        for of in (f.min, f.max)
    )
    first = f.min(f.when(~is_sent, receipt)).over(of_message)
    partners = messages.withColumns({"least": least, "greatest": greatest, "first": first}).dropna(subset=["least"])
    of_log = Window.partitionBy("rx_day", "file")
    least, greatest = f.min("least").over(of_log), f.max("greatest").over(of_log)
    alone = partners.withColumn("alone", (least == greatest) & (least != file))
    return alone.withColumn("both", f.min("alone").over(of_message)).where(is_sent & f.col("both"))


BUILDS: Final = (Build(DELIVERIES, deliveries, {"client_events": (1, 1), "timing": (1, 1)}),)
