"""Metrics in the form of prometheus_client, made from counts that are kept elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from restante.common.histogram import Histogram


def counter(name: str, words: str, value: float) -> Metric:
    """Return a counter. Its name gets the ending `_total`."""
    return CounterMetricFamily(name, words, value=value)


def gauge(name: str, words: str, value: float) -> Metric:
    """Return a gauge."""
    return GaugeMetricFamily(name, words, value=value)


def counters(name: str, words: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    """Return a counter for each tuple of values of the labels."""
    metric = CounterMetricFamily(name, words, labels=labels)
    for each, value in values.items():
        metric.add_metric(each, value)
    return metric


def gauges(name: str, words: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    """Return a gauge for each tuple of values of the labels."""
    metric = GaugeMetricFamily(name, words, labels=labels)
    for each, value in values.items():
        metric.add_metric(each, value)
    return metric


def histogram(name: str, words: str, values: Histogram, **labels: str) -> Metric:
    """Return a histogram."""
    metric = HistogramMetricFamily(name, words, labels=tuple(labels))
    metric.add_metric(tuple(labels.values()), values.buckets(), values.total)
    return metric


def histograms(name: str, words: str, label: str, values: Mapping[str, Histogram]) -> Metric:
    """Return a histogram for each value of a label."""
    metric = HistogramMetricFamily(name, words, labels=(label,))
    for each, measured in values.items():
        metric.add_metric((each,), measured.buckets(), measured.total)
    return metric
