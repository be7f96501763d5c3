"""Recognises the kind of a source by the content of its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from restante.pipeline.sources import archive, files, logs, usage
from restante.pipeline.sources.source import (
    PathPreview,
    Source,
    SourceError,
    SourceSpec,
    parse_spec,
    read_preview,
)

Kind = Callable[[SourceSpec, PathPreview], Source | None]
"""Returns the source if the path is of this kind. Raises SourceError if it is but cannot be used."""

KINDS: Final[tuple[Kind, ...]] = (usage.recognise, archive.recognise, files.recognise, logs.recognise)
"""The kinds of sources, in the order in which they are tried."""


def recognise(spec: str) -> Source:
    """Return the source, recognised by the content of the file or directory, never by its name.

    An empty file counts as a trace: one that was just rotated, or that of a server that just started. Raises Misuse
    if the operator's text does not name a source, SourceError if the path is of no known kind or cannot be read.
    """
    source_spec = parse_spec(spec)
    if source_spec.url:
        return usage.recognise_url(source_spec)
    preview = read_preview(source_spec)
    for kind in KINDS:
        source = kind(source_spec, preview)
        if source is not None:
            return source
    raise SourceError(
        f"source {source_spec.name}: {source_spec.path} is not a source of usage records, timing logs or envelopes:"
        " name a server's database or its data directory, a timing log, a trace, or a file of envelopes"
    )
