"""The reference of the client library, docs/client/reference.md, from its docstrings and signatures.

To write it anew: PYTHONPATH=src:tests .venv/bin/python -m support.client.reference
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final, get_args

from restante import client
from support.client import sources
from support.client.sources import Attribute, Function, Said
from support.documents import ROOT

PATH: Final = ROOT / "docs" / "client" / "reference.md"

PACKAGE: Final = "restante.client"

HEAD: Final = """\
# Reference of the client library

Every name of `restante.client` that programs can rely on. [The client in ten minutes](guide.md) explains how they are
used together, and [the state machines](states.md) what a wormhole sends when. This page is generated from the
docstrings in `src/restante/client`.

Signatures show what a call looks like: `await`, `async with` and `async for` stand before what needs them. A method
that waits can be cancelled, and the wormhole can still be used. Objects belong to the event loop on which they were
made: no method may be called from another thread.
"""

GROUPS: Final = {
    "Wormholes": (
        "A wormhole of either kind has the methods of `BaseWormhole`.",
        ["Wormhole", "BaseWormhole"],
    ),
    "Journal Mode": (
        "For programs that stop between messages: everything is in one file, and any later process continues.",
        ["Journal", "JournaledWormhole"],
    ),
    "Messages": ("", ["SentMessage", "Message"]),
    "Codes and URIs": ("", ["completions", "word_list", "seed_code", "parse_uri", "TransferUri"]),
    "Texts": (
        "What `restante send`, `restante receive` and `wormhole` say. The application id is `DEFAULT_APP_ID`.",
        ["send_text", "receive_text", "abandon_transfer"],
    ),
    "Files": (
        "Files and directories go from side to side, directly or through a relay, as between `wormhole` clients.",
        [
            *("send_file", "send_directory", "receive", "OfferedFile", "OfferedDirectory", "OfferedText"),
            *("TransitOptions", "Hints", "Relay", "Address"),
        ],
    ),
    "Timing logs": ("When each thing happened, in the form of `wormhole --dump-timing`.", ["TimingLog"]),
}
"""Groups of names that have sections of their own: what is said of the group, and its names."""

EVENTS: Final = """\
## Events

The function that is given as `on_event` is called with each event, on the event loop, in the order in which things
happen. If it raises, the wormhole ends with that error. `Event` is the type of them all. The attributes stand in this
order, so that `match` can use them: `case Reconnecting(delay, reason)`.
"""

ERRORS: Final = """\
## Errors

The text of an error is one sentence for a person, and says what to do where something can be done. `mood` is what the
server is told when the wormhole is closed because of the error. `exit_code` is what `restante send` and
`restante receive` exit with; programs may use it likewise.
"""

DEFAULTS: Final = """\
## Defaults and limits

The library reads no environment variables of its own, and no configuration files.
"""

LIMITS: Final = """\
Limits and times are those of this version. Programs cannot import them from `restante.client`.
"""

LIMIT_NAMES: Final = {
    "restante.client.defaults": ["DEFAULT_WORDS", "MAX_WORDS"],
    "restante.client.connection.work": ["DEFAULT_MAX_BITS"],
    "restante.client.sent_message": ["MAX_SENT_BYTES"],
    "restante.client.core.unstored": ["MAX_UNSTORED_MESSAGES", "MAX_UNSTORED_BYTES"],
    "restante.client.base": ["MAX_CLOSE_SECONDS"],
    "restante.client.unread": ["MAX_UNREAD_MESSAGES", "MAX_UNREAD_BYTES"],
    "restante.client.connection.websocket": ["CONNECT_SECONDS", "PING_SECONDS", "MAX_MESSAGE_BYTES"],
    "restante.client.connection.driver": [
        "ANSWER_SECONDS",
        "MAX_BAD_CONNECTIONS",
        "MAX_HURRIED_CONNECTIONS",
        "MAX_DELAY_SECONDS",
    ],
    "restante.client.core.conversation": ["MAX_EARLY_MESSAGES", "MAX_EARLY_CHARACTERS"],
    "restante.client.journal_mode.checkpoint": ["MAX_BYTES"],
    "restante.client.protocol.code": ["MAX_NAMEPLATE_DIGITS"],
    "restante.client.transit.connecting": ["TRANSIT_SECONDS", "RELAY_DELAY_SECONDS"],
    "restante.client.transit.hints": ["MAX_HINTS"],
    "restante.client.transit.records": ["MAX_RECORD_BYTES"],
    "restante.client.files.walk": ["MAX_ENTRIES", "MAX_DEPTH"],
}
"""Constants that users meet, by their modules."""

CONSTANTS: Final = ["DEFAULT_SERVER", "DEFAULT_TRANSIT_RELAY", "DEFAULT_APP_ID", "Mood"]

RECEIVERS: Final = {
    "Wormhole": "wormhole",
    "BaseWormhole": "wormhole",
    "JournaledWormhole": "wormhole",
    "Journal": "journal",
    "SentMessage": "sent",
    "TransferUri": "uri",
    "OfferedFile": "offered",
    "OfferedDirectory": "offered",
    "OfferedText": "offered",
    "TransitOptions": "options",
    "Hints": "hints",
    "Relay": "relay",
    "Address": "address",
    "TimingLog": "timing",
}
"""What an object is called in signatures."""

ENTRIES: Final = {"__aiter__": ": async for", "__str__": ": str"}
"""How methods that are not called by their names are named in headings."""

PLACES: Final = sources.exported(PACKAGE)


def events() -> list[str]:
    """Return the names of the events, in the order of `Event`."""
    return [each.__name__ for each in get_args(client.Event)]


def errors() -> list[type[BaseException]]:
    """Return the classes of errors."""
    found = [getattr(client, name) for name in client.__all__]
    return [each for each in found if isinstance(each, type) and issubclass(each, BaseException)]


def reference() -> str:
    """Return the page."""
    parts = [HEAD]
    for title, (text, names) in GROUPS.items():
        parts += [f"## {title}", *([text] if text else [])]
        parts += [part for name in names for part in section(name)]
    parts += [EVENTS, event_table(), ERRORS, f"```\n{tree()}\n```", error_table()]
    parts += [DEFAULTS, constant_table(), LIMITS, limit_table()]
    return linked("\n\n".join(part.strip("\n") for part in parts)) + "\n"


def section(name: str) -> list[str]:
    """Return what is said of a class or function, in paragraphs."""
    home, there = PLACES[name]
    kind = sources.class_of(home, there)
    if kind is not None:
        return class_section(name, home, sources.with_private_bases(home, kind))
    function = sources.function_of(home, there)
    wait = "await " if isinstance(function, ast.AsyncFunctionDef) else ""
    call = sources.signature(function, home, wait + name)
    return [f"### {name}", f"```\n{call}\n```", *explained(sources.said(function))]


def class_section(name: str, home: str, kind: ast.ClassDef) -> list[str]:
    """Return what is said of a class, its attributes and its methods."""
    parts = [f"### {name}", *explained(sources.said(kind))]
    made = [each for each in sources.members(kind) if each.name == "__init__" and sources.said(each).args]
    for each in made:
        parts += [f"```\n{sources.signature(each, home, name, bound=True).removesuffix(' -> None')}\n```"]
        parts += explained(sources.said(each))
    if table := attribute_table(kind):
        parts.append(table)
    for each in sources.members(kind):
        if not sources.decorated(each, "property") and (call := call_of(name, home, each)):
            parts += [f"#### {name}{ENTRIES.get(each.name, f'.{each.name}')}", f"```\n{call}\n```"]
            parts += explained(sources.said(each))
    return parts


def call_of(name: str, home: str, method: Function) -> str | None:
    """Return how a method is called, or None if it is not for programs."""
    receiver = RECEIVERS[name]
    if method.name == "__aiter__":
        return f"async for message in {receiver}{yielded(method)}"
    if method.name == "__str__":
        return f"str({receiver}) -> str"
    if method.name.startswith("_"):
        return None
    if sources.decorated(method, "classmethod"):
        return sources.signature(method, home, f"{name}.{method.name}", bound=True).replace("-> Self", f"-> {name}")
    call = sources.signature(method, home, f"{receiver}.{method.name}", bound=True)
    yields = call.rpartition(" -> AsyncIterator[")
    if sources.decorated(method, "asynccontextmanager"):
        return f"async with {yields[0]} as state"
    if yields[1]:
        return f"async for message in {yields[0]}{yielded(method)}"
    return f"await {call}" if isinstance(method, ast.AsyncFunctionDef) else call


def yielded(method: Function) -> str:
    """Return the type of what a generator yields."""
    match method.returns:
        case ast.Subscript(slice=kind):
            return f" -> {sources.type_of(kind)}"
    raise AssertionError(method.name)


def explained(said: Said) -> list[str]:
    """Return a docstring in paragraphs, with its arguments and errors as lists."""
    parts = [said.text]
    if said.args:
        parts.append("\n".join(f"* `{name}`: {meaning}" for name, meaning in said.args))
    if said.raises:
        parts.append("\n".join(["Raises:\n", *(f"* `{name}`: {meaning}" for name, meaning in said.raises)]))
    return [each for each in parts if each]


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(each.replace("|", "\\|") for each in row) + " |" for row in cells)


def public_attributes(kind: ast.ClassDef) -> Iterator[Attribute]:
    """Yield the attributes of a class: its fields, those that `__init__` explains, and its properties."""
    yield from sources.attributes(kind.body)
    for each in sources.members(kind):
        if each.name == "__init__":
            yield from (found for found in sources.attributes(each.body) if found.meaning)
        elif sources.decorated(each, "property") and not each.name.startswith("_"):
            assert each.returns is not None
            text = " ".join((ast.get_docstring(each) or "").split())
            yield Attribute(each.name, sources.type_of(each.returns), text)


def attribute_table(kind: ast.ClassDef) -> str:
    """Return the attributes of a class, or nothing if it has none."""
    found = [each for each in public_attributes(kind) if not each.name.startswith("_")]
    rows = [[f"`{each.name}`", f"`{each.type}`", each.meaning] for each in found]
    return table(["attribute", "type", "meaning"], rows) if rows else ""


def event_table() -> str:
    """Return the events with their attributes."""
    rows = []
    for name in events():
        home = import_module(PACKAGE).__dict__.get(name, getattr(client, name)).__module__
        kind = sources.class_of(home, name)
        assert kind is not None
        found = list(public_attributes(kind))
        takes = ", ".join(f"`{each.name}: {each.type}`" for each in found)
        notes = [f"`{each.name}`: {each.meaning}" for each in found if each.meaning]
        rows.append([f"`{name}`", takes, " ".join([*sources.said(kind).text.split(), *notes])])
    return table(["event", "attributes", "meaning"], rows)


def tree() -> str:
    """Return the errors as a tree, with their base classes in Python."""
    public = errors()
    lines: list[str] = []

    def grow(root: type[BaseException], indent: str) -> None:
        below = sorted((each for each in public if root in each.__bases__), key=lambda each: each.__name__)
        for each in below:
            last = each is below[-1]
            lines.append(f"{indent}{'└── ' if last else '├── '}{each.__name__}")
            grow(each, indent + ("    " if last else "│   "))

    lines.append(Exception.__name__)
    grow(Exception, "")
    assert len(lines) == len(public) + 1, "an error has another base"
    return "\n".join(lines)


def error_table() -> str:
    """Return the errors with their moods and exit codes."""
    rows = []
    for each in sorted(errors(), key=lambda each: each.__name__):
        kind = sources.class_of(each.__module__, each.__name__)
        assert kind is not None
        made: Any = each
        mood = f"`{made.mood}`" if hasattr(made, "mood") else ""
        code = str(made.exit_code) if hasattr(made, "exit_code") else ""
        rows.append([f"`{each.__name__}`", mood, code, " ".join(sources.said(kind).text.split())])
    return table(["error", "mood", "exit code", "meaning"], rows)


def constant_table() -> str:
    """Return the constants that programs can import."""
    found = [sources.constant(*PLACES[name]) for name in CONSTANTS]
    values = [str(getattr(client, name)).removeprefix("typing.") for name in CONSTANTS]
    rows = [[f"`{each.name}`", f"`{value}`", each.meaning] for each, value in zip(found, values, strict=True)]
    return table(["name", "value", "meaning"], rows)


def limit_table() -> str:
    """Return the limits that users meet."""
    rows = []
    for home, names in LIMIT_NAMES.items():
        for name in names:
            value = getattr(import_module(home), name)
            rows.append([f"`{name}`", shown(name, value), sources.constant(home, name).meaning])
    return table(["name", "value", "meaning"], rows)


def shown(name: str, value: float) -> str:
    """Return a number with its unit, if that is large."""
    if name.endswith("BYTES") and value % 1024**2 == 0:
        return f"{value / 1024**2:g} MiB"
    return f"{value:,g}" if value < 10**6 else f"{value:,}"


# ── links ────────────────────────────────────────────────────────────────────────────────────────


def anchors(page: str) -> dict[str, str]:
    """Return the anchor of each heading, as GitHub makes it."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {each: re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def linked(page: str) -> str:
    """Return the page with links from names in its text to where they are described."""
    there = {
        **anchors(page),
        **{each.__name__: "errors" for each in errors()},
        **dict.fromkeys([*events(), "Event"], "events"),
        **dict.fromkeys(CONSTANTS, "defaults-and-limits"),
        **{name: "defaults-and-limits" for names in LIMIT_NAMES.values() for name in names},
    }

    def link(found: re.Match[str]) -> str:
        anchor = there.get(found[1]) or there.get(found[1].partition(".")[0])
        return f"[{found[0]}](#{anchor})" if anchor and anchor != here else found[0]

    lines, code, here = [], False, ""
    for line in page.splitlines():
        code ^= line.startswith("```")
        if line.startswith("#"):
            here = there[line.lstrip("# ")]
        head, text = line, ""
        if not code and not line.startswith(("#", "    ")):
            row = re.match(r"\| `\w+` \|", line)
            head, text = (row[0], line[row.end() :]) if row else ("", line)
            text = re.sub(r"`([\w.]+)`", link, text)
        lines.append(head + text)
    return "\n".join(lines)


if __name__ == "__main__":
    PATH.write_text(reference())
