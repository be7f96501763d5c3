"""Metrics as a test reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def counts(text: str) -> dict[str, float]:
    """Return each sample of a page of metrics by its name and the values of its labels, separated by spaces."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {" ".join((each.name, *each.labels.values())): each.value for each in samples}
    assert len(found) == len(samples)
    return found
