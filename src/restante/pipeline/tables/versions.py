"""Which clients come, and how it ends for them: by server, day, application and version.

A usage row of a mailbox does not say who opened it. But its first side binds, then claims or opens at once; so where
all that bound for its application at its server in the two seconds before it were of one version, it was of that
version. Where they were of several, or none bound, or times are blurred further than that, nobody is blamed: such
mailboxes are counted by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from restante.pipeline.schemas import APP, SOURCE, Column, Table
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.commonest import OTHER, grouped
from restante.pipeline.tables.outcomes import COUNTS, RESULTS, results

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BEFORE_US: Final = 2_000_000
"""From a bind to the claim or open that follows: a round trip or two, and the blur of a second that some choose."""

VERSIONS: Final = Table(
    "versions",
    "server, day, application, attribution, implementation and version",
    (
        APP,
        Column("attribution", "STRING", "version; or of mailboxes of no known one: mixed, unbound, blurred"),
        Column(
            "implementation", "STRING", f"as clients said; {OTHER}: beyond the commonest; NULL: nothing", null=True
        ),
        Column("version", "STRING", "likewise", null=True),
        Column("binds", "BIGINT", "clients that bound"),
        Column("mailboxes", "BIGINT", "mailboxes of this version: the sum of the results"),
        *(Column(each.name, each.type, f"mailboxes that ended {each.name}") for each in COUNTS),
        Column("day", "DATE", "the UTC day, of a bind's time and of a mailbox's start"),
        SOURCE,
    ),
)
"""Invariants: `binds` adds up to the rows of client_versions, `mailboxes` to those of mailboxes."""

_WHO: Final = ("implementation", "version")
_KEYS: Final = ("source", "day", "app_id", "attribution", *_WHO)


def versions(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Count binds and the results of mailboxes by version."""
    binds = inputs["client_versions"].groupBy("source", "day", "app_id", f.lit("version").alias("attribution"), *_WHO)
    bound = binds.agg(f.count("*").alias("binds"), *(f.lit(0).cast("bigint").alias(each) for each in RESULTS))
    ended = _attributed(inputs).groupBy(*_KEYS).agg(f.lit(0).cast("bigint").alias("binds"), *results())
    mailboxes = reduce(lambda a, b: a + b, (f.col(each) for each in RESULTS))
    rows = _added(bound.unionAll(ended).withColumn("mailboxes", mailboxes))
    weighed = grouped(rows.withColumn("weight", f.col("binds") + f.col("mailboxes")), "weight", "app_id")
    known = f.col("attribution") == "version"
    return _added(grouped(weighed.where(known), "weight", *_WHO).unionAll(weighed.where(~known)))


def _added(rows: DataFrame) -> DataFrame:
    return rows.groupBy(*_KEYS).agg(*(f.sum(each).alias(each) for each in ("binds", "mailboxes", *RESULTS)))


def _attributed(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Give each mailbox its result and whose it was."""
    sharp = f.coalesce(f.col("blur_us") <= BEFORE_US, f.lit(True))
    at = f.unix_micros("started").alias("at")
    mailboxes = inputs["mailboxes"].select("source", "day", "app_id", "id", "result", at, sharp.alias("sharp"))
    binds = inputs["client_versions"].where(sharp)
    binds = binds.select("source", "app_id", f.unix_micros("connect_time").alias("at"), f.struct(*_WHO).alias("who"))
    least, most = f.col("least"), f.col("most")
    alone = least.eqNullSafe(most)
    found = _before(mailboxes.where("sharp"), binds).select(
        *("source", "day", "app_id", "result"),
        f.when(least.isNull(), "unbound").when(alone, "version").otherwise("mixed").alias("attribution"),
        *(f.when(alone, least[each]).alias(each) for each in _WHO),
    )
    nobody = [f.lit(None).cast("string").alias(each) for each in _WHO]
    blurred = mailboxes.where(~f.col("sharp"))
    return found.unionAll(
        blurred.select("source", "day", "app_id", "result", f.lit("blurred").alias("attribution"), *nobody)
    )


def _before(mailboxes: DataFrame, binds: DataFrame) -> DataFrame:
    """Give each mailbox the least and the greatest of those that bound in the two seconds up to its start.

    Time is cut into slots of two seconds, so what is wanted is the end of one slot and the beginning of the next.
    Each row looks once forwards and once back: pairs of mailboxes and binds would be too many in a busy slot.
    """
    slot = f.floor(f.col("at") / BEFORE_US).alias("slot")
    said = binds.select("source", "app_id", slot, "at", "who", *(f.lit(None).alias(each) for each in _ASKED))
    asked = [f.lit(None).alias("who"), *(f.col(each) for each in _ASKED[:-1])]
    up_to = mailboxes.select("source", "app_id", slot, "at", *asked, f.lit(True).alias("up_to"))
    earlier = mailboxes.withColumn("at", f.col("at") - BEFORE_US)
    since = earlier.select("source", "app_id", slot, "at", *asked, f.lit(False).alias("up_to"))
    in_slot = Window.partitionBy("source", "app_id", "slot")
    looks = [
        f.when(f.col("up_to"), pick("who").over(in_slot.orderBy("at")))
        .otherwise(pick("who").over(in_slot.orderBy(f.desc("at"))))
        .alias(name)
        for name, pick in (("least", f.min), ("most", f.max))
    ]
    answered = said.unionAll(up_to).unionAll(since).select("*", *looks).where(f.col("id").isNotNull())
    both = answered.groupBy("source", "day", "app_id", "id", "result")
    return both.agg(f.min("least").alias("least"), f.max("most").alias("most"))


_ASKED: Final = ("day", "id", "result", "up_to")

BUILDS: Final = (Build(VERSIONS, {"client_versions": (1, 0), "mailboxes": (0, 0)}, versions),)
