"""Recognises the kind of a source by the content of its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from restante.common.errors import plain
from restante.pipeline.sources import archive, files, logs, usage
from restante.pipeline.sources.source import (
    PREVIEW_BYTES,
    PathPreview,
    Source,
    SourceError,
    SourceSpec,
    is_glob,
    parse_spec,
    refuse_special,
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
    preview = _preview(source_spec)
    for kind in KINDS:
        source = kind(source_spec, preview)
        if source is not None:
            return source
    raise SourceError(
        f"source {source_spec.name}: {source_spec.path} is not a source of usage records, timing logs or envelopes:"
        " name a server's database or its data directory, a timing log, a trace, or a file of envelopes"
    )


def _preview(spec: SourceSpec) -> PathPreview:
    path = spec.path
    try:
        if is_glob(path):
            return PathPreview(frozenset(), b"")
        if path.is_dir():
            return PathPreview(frozenset(entry.name for entry in path.iterdir()), b"")
        refuse_special(path, spec.name)
        with path.open("rb") as file:
            return PathPreview(None, file.read(PREVIEW_BYTES))
    except OSError as error:
        raise SourceError(f"source {spec.name}: cannot read {path}: {plain(error)}") from error
