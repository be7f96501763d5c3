"""Transfers: the two timing logs of each one, which is the sender's, and which client waited for the other.

docs/timing/specification.md, "Transfers", specifies it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from restante.pipeline.schemas import SERVER_COLUMN, SOURCE_COLUMN, Column, Table, day_of, us_column
from restante.pipeline.tables.build import Build
from restante.timing.model.exchanges import MAX_APART_US
from restante.timing.model.timeline import ROLE_SIGNS, RoleSign


def _waited_column(client: str, peer: str) -> Column:
    return us_column(
        f"{client}_waited_us",
        f"Time from the {client}'s first message until it had the {peer}'s first one, by the {client}'s clock. 0: it"
        f" had that one before. NULL: the {client} sent no message that the {peer} received, or the reverse.",
        null=True,
    )


TRANSFERS: Final = Table(
    "transfers",
    "transfer of which both clients' timing logs are in the lake",
    (
        Column("sender_file", "STRING", "Identifies the sender's timing log: SHA-256 of the file."),
        Column("receiver_file", "STRING", "Identifies the receiver's timing log: SHA-256 of the file."),
        Column("receiver_source", "STRING", "Name of the source of the receiver's log, as given in --source."),
        Column(
            "roles_known",
            "BOOLEAN",
            "Whether the logs show which one is the sender's. If not, the client whose message the server received"
            " first is taken for the sender.",
        ),
        SERVER_COLUMN,
        Column(
            "messages",
            "BIGINT",
            "Messages that one client sent and the other one received: rows of deliveries, of the first 24 hours.",
        ),
        Column("first", "TIMESTAMP", "When the server received the first of these messages, by its clock."),
        Column("last", "TIMESTAMP", "When the server received the last of these messages, by its clock."),
        _waited_column("sender", "receiver"),
        _waited_column("receiver", "sender"),
        us_column(
            "offset_us",
            "How far the receiver's clock was ahead of the sender's, by the message with the smallest error. Below 0:"
            " it was behind. NULL: us is NULL in all of its rows of deliveries.",
            null=True,
        ),
        us_column("error_us", "Largest possible error of offset_us. NULL: it is not known.", null=True),
        day_of("the first message, by the server's clock"),
        SOURCE_COLUMN._replace(meaning="Name of the source of the sender's log, as given in --source."),
    ),
)
"""Invariant: `first`, `last` and `messages` are those of the rows of deliveries of these two logs, up to 24 hours
after `first`."""

_PAIR: Final = ("one_file", "two_file")
"""The logs of a transfer in the order of their digests."""


def transfers(client_events: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return the transfers. Messages of two logs that are more than 24 hours apart are of two transfers."""
    roles = _roles(client_events)
    pairs = _pairs(deliveries)
    for side in ("one", "two"):
        names = [f.col(name).alias(f"{side}_{name}") for name in ("source", "file", "role")]
        pairs = pairs.join(roles.select("day", *names), ["day", f"{side}_source", f"{side}_file"], "left")
    one_role, two_role = f.col("one_role"), f.col("two_role")
    roles_known = ~one_role.eqNullSafe(two_role)
    by_role = f.coalesce(one_role == "sender", f.lit(False)) | f.coalesce(two_role == "receiver", f.lit(False))
    one_sends = f.when(roles_known, by_role).otherwise(f.col("began.file") == f.col("one_file"))
    client_one, client_two = (
        f.struct(*(f.col(f"{side}_{name}").alias(name) for name in _OF_CLIENT)) for side in ("one", "two")
    )
    sides = pairs.withColumns(
        {
            "sender": f.when(one_sends, client_one).otherwise(client_two),
            "receiver": f.when(one_sends, client_two).otherwise(client_one),
            "ahead": f.when(one_sends, f.col("best.ahead")).otherwise(-f.col("best.ahead")),
        }
    )
    return sides.select(
        f.col("sender.file").alias("sender_file"),
        f.col("receiver.file").alias("receiver_file"),
        f.col("receiver.source").alias("receiver_source"),
        roles_known.alias("roles_known"),
        "server",
        "messages",
        f.timestamp_micros("start").alias("first"),
        "last",
        *(f.col(f"{client}.waited_us").alias(f"{client}_waited_us") for client in ("sender", "receiver")),
        f.col("ahead").alias("offset_us"),
        f.col("best.error_us").alias("error_us"),
        "day",
        f.col("sender.source").alias("source"),
    )


_OF_CLIENT: Final = ("file", "source", "waited_us")


def _pairs(deliveries: DataFrame) -> DataFrame:
    """Return each transfer with its logs as `one` and `two`, and what follows from its messages."""
    by_one = f.col("file") < f.col("peer_file")
    ahead = f.col("peer_offset_us") - f.col("offset_us")
    rows = deliveries.select(
        "day",
        "file",
        "server",
        "server_rx",
        "sent",
        "received",
        "us",
        "error_us",
        by_one.alias("by_one"),
        f.unix_micros("server_rx").alias("rx"),
        f.when(by_one, ahead).otherwise(-ahead).alias("ahead"),
        *(f.when(by_one, f.col(a)).otherwise(f.col(b)).alias(name) for name, a, b in _ENDS),
    )
    in_order = Window.partitionBy(*_PAIR).orderBy("rx")
    begins = f.coalesce(f.col("rx") - f.lag("rx").over(in_order) > MAX_APART_US, f.lit(True))
    before = in_order.rangeBetween(Window.unboundedPreceding, Window.currentRow)
    rows = rows.withColumn("begins", begins)
    rows = rows.withColumn("start", f.max(f.when(f.col("begins"), f.col("rx"))).over(before))
    best = f.struct("error_us", "rx", "ahead")
    return (
        rows.where(f.col("rx") - f.col("start") <= MAX_APART_US)
        .groupBy(*_PAIR, "start")
        .agg(
            f.min("day").alias("day"),
            *(f.min(f"{side}_source").alias(f"{side}_source") for side in ("one", "two")),
            f.max("server").alias("server"),
            f.count("*").alias("messages"),
            f.max("server_rx").alias("last"),
            f.min(f.struct("rx", "file")).alias("began"),
            f.min(f.when(f.col("us").isNotNull(), best)).alias("best"),
            _waited_us(f.col("by_one")).alias("one_waited_us"),
            _waited_us(~f.col("by_one")).alias("two_waited_us"),
        )
    )


_ENDS: Final = (
    ("one_file", "file", "peer_file"),
    ("two_file", "peer_file", "file"),
    ("one_source", "source", "peer_source"),
    ("two_source", "peer_source", "source"),
)
"""Column of a pair, and the columns of a delivery in which it is, if `one` sent the message or if `two` did."""


def _waited_us(sent_it: Expression) -> Expression:
    """Return how long a client waited, given which messages it sent."""
    sent = f.min(f.when(sent_it, f.unix_micros("sent")))
    received = f.min(f.when(~sent_it, f.unix_micros("received")))
    return f.when(received < sent, 0).otherwise(received - sent)


def _roles(events: DataFrame) -> DataFrame:
    """Return the role of each log's client for each day, by its events of this day, and of the days before and after.

    It is what restante.timing.model.timeline.role_of returns for a log that does not say which command wrote it.
    """
    signs = events.select(
        "source",
        "file",
        f.explode(f.array(*(f.date_add("day", days) for days in (-1, 0, 1)))).alias("day"),
        f.coalesce(*(f.when(_shows(sign), number) for number, sign in enumerate(ROLE_SIGNS))).alias("sign"),
    ).where("sign IS NOT NULL")
    strongest = signs.groupBy("source", "file", "day").agg(f.min("sign").alias("sign"))
    role = f.element_at(f.array(*(f.lit(sign.role) for sign in ROLE_SIGNS)), f.col("sign") + 1)
    return strongest.select("source", "file", "day", role.alias("role"))


def _shows(sign: RoleSign) -> Expression:
    has_name = f.col("name").isin(*sorted(sign.names))
    return has_name if sign.command is None else has_name & (f.col("command") == sign.command)


BUILDS: Final = (Build(TRANSFERS, transfers, {"client_events": (1, 1), "deliveries": (1, 1)}),)
