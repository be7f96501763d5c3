"""The metrics of a server: each is defined once for Prometheus, /varz, the dashboard and the guide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from prometheus_client import core

from restante.common.histogram import Histogram

Family: TypeAlias = core.Metric
Server = TypeVar("Server")
Value: TypeAlias = "float | Histogram | Mapping[str, Value]"
"""A mapping has a value for each value of a label."""


@dataclass(frozen=True)
class Metric(Generic[Server]):
    """A metric of a kind of server."""

    help: str
    value: Callable[[Server], Value]
    path: str = ""
    """The path of its field in /varz, "" for none. The field of a histogram is the sum of its values."""
    labels: tuple[str, ...] = ()
    constant_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that follow the others, with their only values."""
    family: ClassVar[Any]


class CounterMetric(Metric[Server]):
    """A metric whose name gets the ending `_total`."""

    family = core.CounterMetricFamily


class GaugeMetric(Metric[Server]):
    """A metric that rises and falls."""

    family = core.GaugeMetricFamily


class HistogramMetric(Metric[Server]):
    """A metric whose values are histograms."""

    family = core.HistogramMetricFamily


class UntypedMetric(Metric[Server]):
    """A metric that Prometheus is not told the type of."""

    family = core.UntypedMetricFamily


def families(metrics: Mapping[str, Metric[Server]], server: Server) -> Iterator[Family]:
    """Yield metrics by name with their values, for Prometheus."""
    for name, metric in metrics.items():
        family = metric.family(name, metric.help, labels=(*metric.labels, *metric.constant_labels))
        for labels, value in _by_labels(metric.value(server), ()):
            values = (value.buckets(), value.total) if isinstance(value, Histogram) else (value,)
            family.add_metric((*labels, *metric.constant_labels.values()), *values)
        yield family


def _by_labels(value: Value, labels: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float | Histogram]]:
    if isinstance(value, Mapping):
        for label, inner in value.items():
            yield from _by_labels(inner, (*labels, label))
    else:
        yield labels, value


def total(metrics: Mapping[str, Metric[Server]], server: Server, name: str) -> float:
    """Return the sum of a metric over its labels. NAME_sum and NAME_count are of a histogram, as in Prometheus."""
    metric = metrics[name if name in metrics else name.rpartition("_")[0]]
    return sum(
        value if not isinstance(value, Histogram) else value.total if name.endswith("_sum") else value.count
        for _, value in _by_labels(metric.value(server), ())
    )


def page(metrics: Mapping[str, Metric[Server]], server: Server, other_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of metrics, and others by their paths, as a JSON page."""
    values = {metric.path: metric.value(server) for metric in metrics.values() if metric.path}
    nested: dict[str, Any] = {}
    for path, value in {**other_fields, **values}.items():
        *parents, name = path.split(".")
        part = nested
        for parent in parents:
            part = part.setdefault(parent, {})
        part[name] = value.total if isinstance(value, Histogram) else value
    return nested
