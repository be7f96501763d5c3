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

from pyspark.sql import functions as f

from restante.pipeline.schemas import APP, SOURCE, Column, Table
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.commonest import OTHER, by_day, grouped
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
    rows = _added(by_day(bound.unionAll(ended).withColumn("mailboxes", mailboxes)))
    weighed = grouped(rows.withColumn("weight", f.col("binds") + f.col("mailboxes")), "weight", "app_id")
    return _added(grouped(weighed, "weight", *_WHO, where=f.col("attribution") == "version"))


def _added(rows: DataFrame) -> DataFrame:
    return rows.groupBy(*_KEYS).agg(*(f.sum(each).alias(each) for each in ("binds", "mailboxes", *RESULTS)))


def _attributed(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Give each mailbox its result and whose it was."""
    sharp = f.coalesce(f.col("blur_us") <= BEFORE_US, f.lit(True))
    at = f.unix_micros("started").alias("at")
    mailboxes = inputs["mailboxes"].select("source", "day", "app_id", "result", at, sharp.alias("sharp"))
    binds = inputs["client_versions"].where(sharp)
    binds = binds.select("source", "app_id", f.unix_micros("connect_time").alias("at"), f.struct(*_WHO).alias("who"))
    slot = f.floor(f.col("at") / BEFORE_US)
    asked = mailboxes.withColumn("slot", f.when(f.col("sharp"), slot))
    rows = asked.join(_slots(binds.withColumn("slot", slot)), ["source", "app_id", "slot"], "left")
    up_to = f.filter("firsts", lambda first: first["at"] <= f.col("at"))
    since = f.filter("lasts", lambda last: last["at"] >= f.col("at") - BEFORE_US)
    came = f.concat(*(f.coalesce(some, f.array()) for some in (up_to, since)))
    rows = rows.withColumn("came", f.transform(came, lambda each: each["who"]))
    least, most = f.array_min("came"), f.array_max("came")
    alone = f.col("sharp") & (f.size("came") > 0) & least.eqNullSafe(most)
    how = f.when(~f.col("sharp"), "blurred").when(f.size("came") == 0, "unbound").when(alone, "version")
    return rows.select(
        *("source", "day", "app_id", "result"),
        how.otherwise("mixed").alias("attribution"),
        *(f.when(alone, least[each]).alias(each) for each in _WHO),
    )


def _slots(binds: DataFrame) -> DataFrame:
    """Give what a mailbox of each slot of two seconds must know of those that bound.

    What counts is the slot up to its start, and the end of the slot before. Whether one version bound there, or
    several, two tell: the two that bound first in the slot, and the two that bound last in the one before. So a row
    is never compared with many, however busy its slot was.
    """
    by = ("source", "app_id", "slot")
    each = binds.groupBy(*by, "who").agg(f.min("at").alias("first"), f.max("at").alias("last"))
    firsts, lasts = (f.collect_list(f.struct(f.col(end).alias("at"), "who")) for end in ("first", "last"))
    slots = each.groupBy(*by).agg(
        f.slice(f.sort_array(firsts), 1, 2).alias("firsts"),
        f.slice(f.sort_array(lasts, asc=False), 1, 2).alias("lasts"),
    )
    nothing = f.lit(None)
    own = slots.select(*by, "firsts", nothing.alias("lasts"))
    following = slots.select("source", "app_id", (f.col("slot") + 1).alias("slot"), nothing.alias("firsts"), "lasts")
    both = own.unionAll(following).groupBy(*by)
    return both.agg(*(f.first(name, ignorenulls=True).alias(name) for name in ("firsts", "lasts")))


BUILDS: Final = (Build(VERSIONS, {"client_versions": (1, 0), "mailboxes": (0, 0)}, versions, placed=True),)
