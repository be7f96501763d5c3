"""A timeline as an HTML page: one file that loads nothing, with the timeline in it. Pure, but for its template.

The tables of causes are in the page's HTML. The scripts in `web/` draw the diagram on a canvas and list the messages.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Final

import msgspec

from restante.common.content_policy import source_hash
from restante.common.plural import counted
from restante.common.units import duration
from restante.timing.model.timeline import ROLES, Timeline
from restante.timing.outputs import page_tables
from restante.timing.outputs.wording import NO_TRACE, clock

_WEB: Final = Path(__file__).with_name("web")

_SCRIPTS: Final = ("model", "view", "folds", "drawing", "lines", "labels", "tooltip", "search", "list", "input")
"""The page's scripts; the last one starts the page."""

_IN_SCRIPT: Final = {
    each: rf"\u{ord(each):04x}".encode()
    for each in "<>&\u2028\u2029"  # the end of the element, a comment, an entity; ends of lines in older JavaScript
}
"""Characters that the JSON in a `script` element has as escapes. In JSON they are only in strings."""


def page(timeline: Timeline) -> bytes:
    """Return a timeline as an HTML page in UTF-8. The same timeline gives the same bytes."""
    style, script = _style(), _script()
    words = {
        "title": f"Transfer of {duration(timeline.duration_us)} - Restante",
        "heading": f"Transfer of {duration(timeline.duration_us)}",
    }
    return (
        Template((_WEB / "page.html").read_text("utf-8"))
        .substitute(
            {name: escape(each) for name, each in words.items()},
            policy=escape(_policy(style, script)),
            style=style,
            script=script,
            answer=page_tables.answers(timeline),
            patterns=page_tables.patterns(),
            facts="\n".join(f"<li>{escape(each)}</li>" for each in _facts(timeline)),
            elapsed=page_tables.elapsed_tables(timeline),
            delays=page_tables.delay_table(timeline),
            legend=page_tables.legend(timeline),
            data=_data(timeline),
        )
        .encode()
    )


def _data(timeline: Timeline) -> str:
    encoded = msgspec.json.encode(timeline)
    for character, escaped in _IN_SCRIPT.items():
        encoded = encoded.replace(character.encode(), escaped)
    return encoded.decode()


@functools.cache
def _style() -> str:
    return (_WEB / "page.css").read_text("utf-8")


@functools.cache
def _script() -> str:
    scripts = "\n".join((_WEB / f"{name}.js").read_text("utf-8") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{scripts}}})();\n'


def _policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy: this style and this script, and no requests. The icon is empty."""
    return (
        f"default-src 'none'; img-src data:; style-src '{source_hash(style)}'; script-src '{source_hash(script)}';"
        " base-uri 'none'; form-action 'none'"
    )


def _facts(timeline: Timeline) -> Iterator[str]:
    began = datetime.fromtimestamp(timeline.began, UTC)
    yield f"Began {began:%Y-%m-%d %H:%M:%S} UTC"
    messages = sum(command.type == "add" for command in timeline.commands)
    yield f"{counted(len(timeline.commands), 'command')}, of them {counted(messages, 'message')}"
    yield from (clock(client, " ±\u00a0{}") for client in timeline.clients)
    given = {client.role for client in timeline.clients}
    yield from (f"No log of the {role}" for role in ROLES if role not in given)
    if not timeline.traced:
        yield NO_TRACE
