"""The sections of a report: queries of the lake, and what their rows become. Pure."""

from __future__ import annotations

from typing import Final

from restante.pipeline.report.sections import clients, envelopes, histograms, ledger, load, relay, results
from restante.pipeline.report.sections.subject import Subject

SUBJECTS: Final[tuple[Subject, ...]] = (
    results.RESULTS_SUBJECT,
    histograms.WAITING_SUBJECT,
    clients.VERSIONS_SUBJECT,
    load.BUSY_SUBJECT,
    load.PRESSURE_SUBJECT,
    clients.GUESSES_SUBJECT,
    relay.RELAY_SUBJECT,
    envelopes.TRAFFIC_SUBJECT,
    envelopes.COVERAGE_SUBJECT,
    histograms.TIMING_SUBJECT,
    ledger.SOURCES_SUBJECT,
    ledger.QUARANTINE_SUBJECT,
)
"""All sections, in the order of the page."""
