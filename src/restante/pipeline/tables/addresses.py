"""Distinct addresses of connections, by server, day and application.

The lake has no id of an address. Ingest compares the ids that the server stored, and writes with each bind whether it
is the first of its day from its address, and the first of its application. Their sums are the numbers of addresses.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from restante.pipeline.schemas import SOURCE_COLUMN, Column, Table, day_of
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.top_n import MAX_NAMES, OTHER_NAME, group_rare, task_per_day

ADDRESSES: Final = Table(
    "addresses",
    "server, day and application, and one for all applications of a server and day",
    (
        Column(
            "app_id",
            "STRING",
            f"Id of the application, as clients sent it; {OTHER_NAME}: not among the {MAX_NAMES:,} most frequent of"
            " the server and day. NULL: all applications together.",
            null=True,
        ),
        Column("connections", "BIGINT", "Connections that bound; a client that reconnects counts again."),
        Column("unknown", "BIGINT", "Of these: connections whose address is not known."),
        Column(
            "addresses",
            "BIGINT",
            "Different addresses of the other connections: IPv4 addresses, or IPv6 networks of 64 bits. An address is"
            " not a person: many devices share one behind a router (NAT) or a proxy, and one device may use several"
            " in a day. If the server was restarted, an address of that day counts again. In the row of"
            f" {OTHER_NAME} an address counts once for each of its applications. NULL: no address is known.",
            null=True,
        ),
        day_of("the binds"),
        SOURCE_COLUMN,
    ),
)
"""Invariants: `connections` of the rows without an application adds up to the rows of client_versions, and so does
that of the rows with one; `addresses` is at most `connections` less `unknown`."""


def addresses(client_versions: DataFrame) -> DataFrame:
    """Return the number of connections and of different addresses."""
    of_apps = client_versions.groupBy("source", "day", "app_id").agg(
        f.count("*").alias("connections"),
        f.count_if(f.col("new_address").isNull()).alias("unknown"),
        f.count_if("new_address_of_app").alias("of_app"),
        f.count_if("new_address").alias("of_day"),
    )
    rows = group_rare(task_per_day(of_apps), "connections", "app_id")
    keys = ("source", "day", "app_id")
    sums = rows.groupingSets([keys, keys[:2]], *keys).agg(
        f.sum("connections").alias("connections"),
        f.sum("unknown").alias("unknown"),
        f.when(f.grouping("app_id") == 1, f.sum("of_day")).otherwise(f.sum("of_app")).alias("addresses"),
    )
    has_known = f.col("connections") > f.col("unknown")
    return sums.withColumn("addresses", f.when(has_known, f.col("addresses")))


BUILDS: Final = (Build(ADDRESSES, addresses),)
