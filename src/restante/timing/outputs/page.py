"""A timeline as an HTML page: one file that loads nothing, with the timeline in it. Pure, but for its template.

The tables of causes are in the page's HTML. The scripts in `web/` draw the diagram on a canvas and list the messages.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Final, NamedTuple

import msgspec

from restante.common.content_policy import page_policy
from restante.common.texts import counted
from restante.common.units import duration, percent
from restante.timing.model import elapsed, phases
from restante.timing.model.timeline import ROLES, Delay, Timeline, TimelineClient
from restante.timing.outputs.wording import NO_TRACE, answer_text, clock_text, delay_cells, other_role

_WEB: Final = Path(__file__).with_name("web")

_SCRIPTS: Final = ("model", "view", "folds", "drawing", "lines", "labels", "tooltip", "search", "list", "input")
"""The page's scripts; the last one starts the page."""

_IN_SCRIPT: Final = {character: rf"\u{ord(character):04x}".encode() for character in "<>&\u2028\u2029"}
"""Characters that the JSON in a `script` element has as escapes: they end the element, begin a comment or an entity,
or end a line in older JavaScript. In JSON they are only in strings."""


def timeline_page(timeline: Timeline) -> bytes:
    """Return a timeline as an HTML page in UTF-8. The same timeline gives the same bytes."""
    style, script = _style(), _script()
    heading = escape(f"Transfer of {duration(timeline.duration_us)}")
    return (
        Template((_WEB / "page.html").read_text("utf-8"))
        .substitute(
            title=f"{heading} - Restante",
            heading=heading,
            policy=escape(page_policy(style, script)),
            style=style,
            script=script,
            answer=answer_paragraphs(timeline),
            patterns=cause_patterns(),
            facts="\n".join(f"<li>{escape(fact)}</li>" for fact in _facts(timeline)),
            elapsed="\n".join(map(_elapsed_table, timeline.clients)),
            delays=delay_table(timeline),
            legend=legend_list(timeline),
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


def _facts(timeline: Timeline) -> Iterator[str]:
    began = datetime.fromtimestamp(timeline.began, UTC)
    yield f"Began {began:%Y-%m-%d %H:%M:%S} UTC"
    messages = sum(command.type == "add" for command in timeline.commands)
    yield f"{counted(len(timeline.commands), 'command')}, of them {counted(messages, 'message')}"
    yield from (clock_text(client, " ±\u00a0{}") for client in timeline.clients)
    roles = {client.role for client in timeline.clients}
    yield from (f"No log of the {role}" for role in ROLES if role not in roles)
    if not timeline.traced:
        yield NO_TRACE


# ── answer, tables and legend ─────────────────────────────────────────────────────────────────────
# They need no script.


class Appearance(NamedTuple):
    """How a cause is drawn and described."""

    colour: str
    """Name of a colour of the style sheet. Causes of one colour differ in their patterns."""
    path: str
    """Pattern on a tile of 8 by 8: an SVG path."""
    thickness: float
    """Width of the pattern's strokes."""
    meaning: str
    """What a client does in such time."""


_SLANTED: Final = "M-1 1L1 -1M0 8L8 0M7 9L9 7"
_SLANTED_BACK: Final = "M-1 7L1 9M0 0L8 8M7 -1L9 1"

APPEARANCES: Final[Mapping[str, Appearance]] = {
    phases.HUMAN: Appearance("human", "M1 2h2M5 6h2", 2, "waits for its user"),
    elapsed.PEER: Appearance("peer", _SLANTED, 1.6, "waits for the other client"),
    phases.TRANSFER: Appearance("transfer", "M0 4h8", 8, "transfers data"),
    phases.TRANSIT_CONNECT: Appearance("transfer", "M2 0v4M6 4v4", 1.8, "connects to the other client"),
    phases.CRYPTO: Appearance("crypto", "M0 0L8 8M0 8L8 0", 1.3, "computes keys"),
    phases.NETWORK_OUT: Appearance(
        "network", _SLANTED_BACK, 1.5, "has sent a command, which is on its way to the server"
    ),
    phases.SERVER: Appearance("server", "M2 0v8M6 0v8", 2.2, "has a command in the server, which has no trace of it"),
    phases.QUEUE: Appearance("server", "M2 4h4M4 2v4", 1.2, "has a command in the server's queue"),
    phases.COMMIT: Appearance("server", "M0 2h4M4 6h4", 4, "has a command that the server writes to its disk"),
    phases.QUEUE_AND_COMMIT: Appearance("server", "M0 2h4M4 6h4", 2, "has a command in the queue or at the disk"),
    phases.ANSWER: Appearance(
        "server", "M0 6L4 2L8 6", 1.2, "has a command whose answer the server has not sent yet"
    ),
    phases.NETWORK_IN: Appearance("network", "M0 2h8M0 6h8", 1.4, "has a message on its way from the server"),
    phases.ROUND_TRIP: Appearance("network", "M0 4h8M4 0v8", 1.2, "waits for an answer; its parts are not known"),
    elapsed.CONNECT: Appearance("network", "M0 2h3M4 6h3", 1.6, "connects to the server"),
    elapsed.PROGRAM: Appearance("program", "M3.5 4h1", 1, "starts, computes or ends"),
    elapsed.NOT_RUNNING: Appearance("program", "", 1, "is not running"),
}


_SUMS: Final = frozenset((phases.SERVER, phases.ROUND_TRIP))
"""Phases of the table of delays that consist of others there."""

_LINES: Final = (
    ('<path class="strong" d="M1 5L29 11"/>', "message from client to client"),
    ('<path d="M1 5L29 11"/>', "command, answer, or response of the server"),
    ('<path class="strong" stroke-dasharray="2 3" d="M1 8H29"/>', "message stored in the server until it is sent"),
    ('<path class="dashed" d="M1 8H29"/>', "times between are not known"),
    ('<path class="area" d="M2 1V15L29 8z"/><path d="M2 1V15"/>', "error: the clocks differ by up to this much more"),
)


def answer_paragraphs(timeline: Timeline) -> str:
    """Return a paragraph for each client: what took most of its time. The sender's is the answer of the page."""
    return "\n".join(
        f'<p class="{kind}">{escape(answer_text(client, timeline))}</p>'
        for kind, client in zip(
            ("answer", "answer further"),
            sorted(timeline.clients, key=lambda client: ROLES.index(client.role)),
            strict=False,
        )
    )


def cause_patterns() -> str:
    """Return the pattern of each cause, for the page's SVG. The scripts draw with the same ones."""
    return "\n".join(
        f'<pattern id="fill-{_slug(cause)}" class="of-{appearance.colour}" width="8" height="8"'
        ' patternUnits="userSpaceOnUse"><rect class="wash" width="8" height="8"/>'
        f'<path class="ink" d="{appearance.path}" stroke-width="{appearance.thickness}"/></pattern>'
        for cause, appearance in APPEARANCES.items()
    )


def _slug(cause: str) -> str:
    return cause.replace(" ", "-")


def _swatch(cause: str) -> str:
    return (
        f'<svg class="swatch of-{APPEARANCES[cause].colour}" data-cause="{cause}" aria-hidden="true"'
        ' width="16" height="16"><rect class="frame" x=".5" y=".5" width="15" height="15" rx="2"'
        f' fill="url(#fill-{_slug(cause)})"/></svg>'
    )


def _elapsed_table(client: TimelineClient) -> str:
    """Return the table of what a client's time was spent on, and what the other did while it waited for it."""
    total = client.stop_us - client.start_us
    other = other_role(client.role)
    rows = []
    for spent in sorted(client.spent, key=lambda spent: -spent.us):
        rows.append(_elapsed_row(spent.cause, spent.us, total))
        rows.extend(
            _elapsed_row(cause, us, total, f"{other}: ")
            for cause, us in sorted((spent.peer or {}).items(), key=lambda item: -item[1])
        )
    return (
        f"<table><caption>{client.role.capitalize()} <span>{escape(duration(total))}</span></caption>\n"
        '<thead><tr><th scope="col">Cause</th><th scope="col" class="number">Time</th>'
        '<th scope="col" class="number">Share</th><td class="bar"></td></tr></thead>\n'
        f"<tbody>\n{''.join(rows)}</tbody></table>"
    )


def _elapsed_row(cause: str, us: int, total: int, prefix: str = "") -> str:
    share = min(max(100 * us / total, 0.0), 100.0) if total > 0 else 0.0
    return (
        f'<tr{" class=part" if prefix else ""}><th scope="row">{_swatch(cause)}{prefix}{cause}</th>'
        f'<td class="number">{escape(duration(us))}</td><td class="number">{escape(percent(us, total))}</td>'
        f'<td class="bar"><svg class="of-{APPEARANCES[cause].colour}" aria-hidden="true">'
        f'<rect class="frame" width="{share:.2f}%" height="100%" fill="url(#fill-{_slug(cause)})"/></svg></td></tr>\n'
    )


def delay_table(timeline: Timeline) -> str:
    """Return the table of delays, with each client's in a group of rows."""
    groups = []
    for role in ROLES:
        delays = [delay for delay in timeline.delays if delay.role == role]
        if delays:
            head = f'<tr><th scope="rowgroup" colspan="6"><b>{role.capitalize()}</b></th></tr>\n'
            groups.append(f"<tbody>\n{head}{''.join(map(_delay_row, delays))}</tbody>")
    if not groups:
        return "<p>There was no command and no message.</p>"
    heads = "".join(
        f'<th scope="col" class="number">{name}</th>' for name in ("Number", "Median", "Longest", "Sum", "Error")
    )
    return (
        '<div class="scrolled" tabindex="0" role="region" aria-labelledby="delays-heading"><table>\n'
        f'<thead><tr><th scope="col">Phase</th>{heads}</tr></thead>\n{"".join(groups)}</table></div>'
    )


def _delay_row(delay: Delay) -> str:
    cells = [*delay_cells(delay), "" if delay.error_us is None else f"± {duration(delay.error_us)}"]
    swatch = _swatch(delay.phase) if delay.phase in APPEARANCES and delay.phase not in _SUMS else ""
    return (
        f'<tr><th scope="row">{swatch}{escape(delay.phase)}</th>'
        + "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells)
        + "</tr>\n"
    )


def legend_list(timeline: Timeline) -> str:
    """Return the legend of the lines, and of the causes that this timeline has."""
    causes = {stretch.cause for stretch in timeline.elapsed} | {delay.phase for delay in timeline.delays} - _SUMS
    causes |= {cause for client in timeline.clients for spent in client.spent for cause in spent.peer or {}}
    if any(command.commit_us is None and command.answered_us is not None for command in timeline.commands):
        causes.add(phases.SERVER)
    items = [
        f'<li><svg class="stroke" aria-hidden="true" width="30" height="16">{shape}</svg>{escape(text)}</li>'
        for shape, text in _LINES
    ]
    items.extend(
        f"<li>{_swatch(cause)}<span><b>{cause}</b>: the client {escape(appearance.meaning)}</span></li>"
        for cause, appearance in APPEARANCES.items()
        if cause in causes
    )
    return f'<ul class="legend">\n{chr(10).join(items)}\n</ul>'
