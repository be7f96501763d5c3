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
from support.timing.vectors import DELIVERY_VECTORS, VECTORS, events_of, lines_of, timing_rows, vector_rows

EPOCH = date(1970, 1, 1)
WITHIN = limits(date(2016, 1, 1), 1_774_000_000.0)


def timing_cases() -> Mapping[str, tuple[Mapping[str, Sequence[Values]], Counter[Values]]]:
    """Return the vectors by name: the inputs of the table timing, and its rows."""
    return {vector["name"]: (_inputs(vector), _expected(vector)) for vector in VECTORS}


def _inputs(vector: Mapping[str, Any]) -> Mapping[str, Sequence[Values]]:
    server = None if vector["trace"] is None else "main"
    events = [("f", at, server, *_clean(timing.event, each), "logs") for at, each in enumerate(vector["log"])]
    lines = [("t", at, *_clean(timing.command, each), "main") for at, each in enumerate(vector["trace"] or ())]
    return {"client_events": events, "server_commands": lines}


def delivery_cases(name: str) -> Mapping[str, tuple[Mapping[str, Sequence[Values]], Counter[Values]]]:
    """Return the vectors of deliveries by name: the inputs of the table `deliveries` or `transfers`, and its rows."""
    return {vector["name"]: _delivery_case(vector, name) for vector in DELIVERY_VECTORS}


def _delivery_case(vector: Mapping[str, Any], name: str) -> tuple[Mapping[str, Sequence[Values]], Counter[Values]]:
    events = [
        (log["file"], at, log["server"], *_clean(timing.event, each), log["source"])
        for log in vector["logs"]
        for at, each in enumerate(log["events"])
    ]
    lines = [("t", at, *_clean(timing.command, each), "main") for at, each in enumerate(vector["trace"] or ())]
    inputs: dict[str, Sequence[Values]] = {"client_events": events, "server_commands": lines}
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


def _expected(vector: Mapping[str, Any]) -> Counter[Values]:
    server = None if vector["trace"] is None else "main"
    return Counter(
        ("f", at, server, *rest, _day(vector["log"][at]["start"]), "logs") for at, *rest in vector_rows(vector)
    )


def _day(start: float) -> date:
    return EPOCH + timedelta(microseconds=us(float(start)) or 0)
