"""Metrics in the form of prometheus_client, made from counts that are kept elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from restante.common.histogram import Histogram


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter. Its name gets the ending `_total`."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge."""
    return GaugeMetricFamily(name, text, value=value)


def counters(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    """Return a counter for each tuple of values of the labels."""
    metric = CounterMetricFamily(name, text, labels=labels)
    for label_values, value in values.items():
        metric.add_metric(label_values, value)
    return metric


def gauges(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    """Return a gauge for each tuple of values of the labels."""
    metric = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values.items():
        metric.add_metric(label_values, value)
    return metric


def histogram(name: str, text: str, values: Histogram, **labels: str) -> Metric:
    """Return a histogram."""
    metric = HistogramMetricFamily(name, text, labels=tuple(labels))
    metric.add_metric(tuple(labels.values()), values.buckets(), values.total)
    return metric


def histograms(name: str, text: str, label: str, values: Mapping[str, Histogram]) -> Metric:
    """Return a histogram for each value of a label."""
    metric = HistogramMetricFamily(name, text, labels=(label,))
    for label_value, histogram_ in values.items():
        metric.add_metric((label_value,), histogram_.buckets(), histogram_.total)
    return metric
