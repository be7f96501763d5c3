"""The shared vectors of timing and deliveries as rows of the lake, read from logs and traces as the pipeline does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from restante.pipeline.clean import timing
from restante.pipeline.clean.rules import CleanValues, Fault, TimeLimits, limits
from restante.timing.model.exchanges import us
from support.pipeline.tables import Values
from support.pipeline.tables import rows as written
from support.timing.vectors import DELIVERY_VECTORS, VECTORS, events_of, lines_of, timing_rows

EPOCH = date(1970, 1, 1)
WITHIN = limits(date(2016, 1, 1), 1_774_000_000.0)


Case = tuple[Mapping[str, Sequence[Values]], Counter[Values]]
"""The inputs of a table, and its rows."""


def timing_cases() -> Mapping[str, Case]:
    """Return the vectors by name: the inputs of the table timing, and its rows."""
    cases = {}
    for vector in VECTORS:
        server = None if vector["trace"] is None else "main"
        events = [("f", at, server, *_clean(timing.event, each), "logs") for at, each in enumerate(vector["log"])]
        starts = [_day(each["start"]) for each in vector["log"]]
        expected = Counter(("f", at, server, *rest, starts[at], "logs") for at, *rest in vector["rows"])
        cases[vector["name"]] = {"client_events": events, "server_commands": _lines(vector)}, expected
    return cases


def _lines(vector: Mapping[str, Any]) -> list[Values]:
    return [("t", at, *_clean(timing.command, each), "main") for at, each in enumerate(vector["trace"] or ())]


def delivery_cases(name: str) -> Mapping[str, Case]:
    """Return the vectors of deliveries by name: the inputs of the table `deliveries` or `transfers`, and its rows."""
    return {vector["name"]: _delivery_case(vector, name) for vector in DELIVERY_VECTORS}


def _delivery_case(vector: Mapping[str, Any], name: str) -> Case:
    events = [
        (log["file"], at, log["server"], *_clean(timing.event, each), log["source"])
        for log in vector["logs"]
        for at, each in enumerate(log["events"])
    ]
    inputs: dict[str, Sequence[Values]] = {"client_events": events, "server_commands": _lines(vector)}
    inputs["timing"] = [
        (log["file"], at, log["server"], *rest, _day(log["events"][at]["start"]), log["source"])
        for log in vector["logs"]
        for at, *rest in timing_rows(events_of(log["events"]), lines_of(vector) if log["server"] == "main" else ())
    ]
    inputs["deliveries"] = written("deliveries", vector["deliveries"])
    return inputs, Counter(written(name, vector[name]))


def _clean(read: Callable[[bytes, TimeLimits], CleanValues | Fault], item: Mapping[str, Any]) -> Values:
    values = read(json.dumps(item).encode(), WITHIN)
    assert not isinstance(values, Fault), (values, item)
    *rest, day = values
    return (*rest, EPOCH + timedelta(days=day))


def _day(start: float) -> date:
    return EPOCH + timedelta(microseconds=us(float(start)) or 0)
