"""The reference of the client library, docs/client/reference.md, from its docstrings and signatures.

The order of its sections, and what stands between them, are written by hand: the sections `### NAME`, the tables and
the tree of errors are replaced. To write it anew: PYTHONPATH=src:tests .venv/bin/python -m client.reference
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import fields as fields_of

from restante import client
from support.documents import ROOT

PATH: Final = ROOT / "docs" / "client" / "reference.md"
PACKAGE: Final = ROOT / "src" / "restante" / "client"

SECTION: Final = re.compile(r"^### (\w+)\n.*?(?=^##? |^### |\Z)", re.MULTILINE | re.DOTALL)
TABLE: Final = re.compile(r"^\| (event|error|name) \|.*\n(?:\|.*\n?)*", re.MULTILINE)
TREE: Final = re.compile(r"^Exception\n(?:[├└│ ].*\n)*", re.MULTILINE)
LINK: Final = re.compile(r"\[(`[\w.]+`)\]\(#[^)]*\)")

RECEIVERS: Final = {"SentMessage": "sent", "TimingLog": "timing"} | dict.fromkeys(
    ("OfferedFile", "OfferedDirectory", "OfferedText"), "offered"
)
"""What an object is called in signatures, if not by the last word of its class."""

ENTRIES: Final = {"__aiter__": ": async for", "__str__": ": str"}
"""How methods that are not called by their names are named in headings."""

WIDTH: Final = 110
"""Characters of a signature in one line. A longer one has a line for each argument."""


class Plain(str):
    __slots__ = ()
    __repr__ = str.__str__


class Attribute(NamedTuple):
    name: str
    type: str
    meaning: str


@functools.cache
def homes() -> dict[str, str]:
    return {
        name: ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
        for file in sorted(PACKAGE.rglob("*.py"))
        for name in re.findall(r"^([A-Z]\w*)(?:: [\w.]+)? = ", file.read_text(), re.MULTILINE)
    }


def errors() -> list[type[BaseException]]:
    public = [getattr(client, name) for name in sorted(client.__all__)]
    return [node for node in public if isinstance(node, type) and issubclass(node, BaseException)]


def described(page: str) -> list[str]:
    rows = (re.findall(r"^\| `(\w+)`", table[0], re.MULTILINE) for table in TABLE.finditer(page))
    return [*(node[1] for node in SECTION.finditer(page)), *(name for names in rows for name in names)]


def reference() -> str:
    page = LINK.sub(r"\1", PATH.read_text())
    page = SECTION.sub(lambda node: "\n\n".join(section(node[1])) + "\n\n", page)
    page = TABLE.sub(lambda node: new_table(node[1], described(node[0])), page)
    return linked(TREE.sub(tree(), page))


def section(name: str) -> list[str]:
    public = getattr(client, name)
    if inspect.isfunction(public):
        wait = "await " if inspect.iscoroutinefunction(public) else ""
        return [f"### {name}", code(signature(public, wait + name)), *explained(public)]
    parts = [f"### {name}", *explained(public)]
    methods = members(public)
    if (init := methods.get("__init__")) and "Args:" in (init.__doc__ or ""):
        parts += [code(signature(init, name, bound=True).removesuffix(" -> None")), *explained(init)]
    if rows := [[f"`{node.name}`", f"`{node.type}`", node.meaning] for node in public_attributes(public)]:
        parts.append(table(["attribute", "type", "meaning"], rows).rstrip("\n"))
    for method, function in methods.items():
        if call := call_of(name, function):
            parts += [f"#### {name}{ENTRIES.get(method, f'.{method}')}", code(call), *explained(function)]
    return parts


def code(text: str) -> str:
    return f"```\n{text}\n```"


def members(kind: type[Any]) -> dict[str, Any]:
    collected: dict[str, Any] = {}
    for base in kind.__mro__:
        if base is kind or base.__name__.startswith("_"):
            collected |= {name: value for name, value in vars(base).items() if name not in collected}
    return collected


def call_of(name: str, method: Any) -> str | None:
    receiver = RECEIVERS.get(name) or re.findall("[A-Z][a-z]+", name)[-1].lower()
    function = inspect.unwrap(getattr(method, "__func__", method))
    if not inspect.isfunction(function):
        return None
    yielded = re.fullmatch(r"AsyncIterator\[(.+)\]", function.__annotations__.get("return", ""))
    if function.__name__ == "__aiter__" and yielded:
        return f"async for message in {receiver} -> {yielded[1]}"
    if function.__name__ == "__str__":
        return f"str({receiver}) -> str"
    if function.__name__.startswith("_"):
        return None
    if isinstance(method, classmethod):
        return signature(function, f"{name}.{function.__name__}", bound=True).replace("-> Self", f"-> {name}")
    call = signature(function, f"{receiver}.{function.__name__}", bound=True)
    if not yielded:
        return f"await {call}" if inspect.iscoroutinefunction(function) else call
    head = call.rpartition(" -> ")[0]
    if function is not method:
        return f"async with {head} as state"
    return f"async for message in {head} -> {yielded[1]}"


def parts_of(documented: Any) -> tuple[str, dict[str, list[tuple[str, str]]]]:
    document = inspect.cleandoc(documented.__doc__ or "")
    text, *sections = re.split(r"^(Args|Raises):\n", document, flags=re.MULTILINE)
    entries = {
        title: [
            (name, meaning)
            for line in re.sub(r"\n {5,}", " ", body.strip("\n")).splitlines()
            for name, _, meaning in [line.strip().partition(": ")]
            if name
        ]
        for title, body in zip(sections[::2], sections[1::2], strict=True)
    }
    return text.strip(), entries


def explained(documented: Any) -> list[str]:
    text, entries = parts_of(documented)
    for title, rows in entries.items():
        head = "Raises:\n\n" if title == "Raises" else ""
        text += f"\n\n{head}" + "\n".join(f"* `{name}`: {meaning}" for name, meaning in rows)
    return [text]


def definition_of(public: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(public))).body[0]


def public_attributes(kind: type[Any]) -> Iterator[Attribute]:
    collected = attributes(definition_of(kind).body)
    for name, value in members(kind).items():
        if name == "__init__" and inspect.isfunction(value):
            collected += [attribute for attribute in attributes(definition_of(value).body) if attribute.meaning]
        elif isinstance(value, property):
            returns = value.fget.__annotations__["return"]
            collected.append(Attribute(name, type_of(returns), in_one_line(value.__doc__)))
    fields = fields_of(kind) if issubclass(kind, Struct) and kind.__name__.endswith("Options") else ()
    defaults = {field.name: f" = {field.default:_}" for field in fields if type(field.default) in {int, float}}
    for name, type_, meaning in collected:
        if not name.startswith("_"):
            yield Attribute(name, type_ + defaults.get(name, ""), meaning)


def attributes(body: Sequence[ast.stmt]) -> list[Attribute]:
    collected = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        match following:
            case ast.Expr(value=ast.Constant(value=str(text))):
                meaning = in_one_line(text)
            case _:
                meaning = ""
        match node:
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), annotation=annotation):
                collected.append(Attribute(name, type_of(ast.unparse(annotation)), meaning))
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)]):
                collected.append(Attribute(name, "", meaning))
    return collected


def in_one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def signature(function: Any, name: str, *, bound: bool = False) -> str:
    parameters = [*inspect.signature(function).parameters.values()][bound:]
    takes = [str(as_shown(parameter)) for parameter in parameters]
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        takes.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returns = f" -> {type_of(function.__annotations__['return'])}"
    line = f"{name}({', '.join(takes)}){returns}"
    return line if len(line) <= WIDTH else "\n".join([f"{name}(", *(f"    {node}," for node in takes), f"){returns}"])


def as_shown(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return an argument with its default: a constant's name if programs can import it, else the value."""
    constants = {getattr(client, name): Plain(name) for name in client.__all__ if name.startswith("DEFAULT_")}
    default = parameter.default
    if isinstance(default, str):
        shown = constants.get(default, default)
    else:
        shown = Plain(f"{type(default).__name__}()") if isinstance(default, Struct) else default
    return parameter.replace(annotation=Plain(type_of(parameter.annotation)), default=shown)


def type_of(annotation: str) -> str:
    return re.sub(r"^Annotated\[(.+?), .+\]$", r"\1", annotation).replace("tls.", "ssl.")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(node.replace("|", "\\|") for node in row) + " |\n" for row in cells)


def new_table(kind: str, names: list[str]) -> str:
    tables: dict[str, tuple[list[str], Iterable[list[str]]]] = {
        "event": (["event", "attributes", "meaning"], map(event_row, get_args(client.Event))),
        "error": (["error", "mood", "exit code", "meaning"], map(error_row, errors())),
        "name": (["name", "value", "meaning"], map(constant_row, names)),
    }
    return table(*tables[kind])


def event_row(event: type[Any]) -> list[str]:
    collected = list(public_attributes(event))
    takes = ", ".join(f"`{node.name}: {node.type}`" for node in collected)
    notes = [f"`{node.name}`: {node.meaning}" for node in collected if node.meaning]
    return [f"`{event.__name__}`", takes, " ".join([in_one_line(event.__doc__), *notes])]


def error_row(error: Any) -> list[str]:
    mood = f"`{error.mood}`" if hasattr(error, "mood") else ""
    return [f"`{error.__name__}`", mood, str(getattr(error, "exit_code", "")), in_one_line(parts_of(error)[0])]


def constant_row(name: str) -> list[str]:
    home = import_module(homes()[name])
    value = getattr(home, name)
    (meaning,) = [node.meaning for node in attributes(ast.parse(inspect.getsource(home)).body) if node.name == name]
    if name in client.__all__:
        text = f"`{str(value).removeprefix('typing.')}`"
    elif name.endswith("BYTES") and value % 1024**2 == 0:
        text = f"{value / 1024**2:g} MiB"
    else:
        text = f"{value:,g}" if value < 10**6 else f"{value:,}"
    return [f"`{name}`", text, meaning]


def tree() -> str:
    def below(root: type[BaseException], indent: str) -> Iterator[str]:
        children = [node for node in errors() if root in node.__bases__]
        for node in children:
            last = node is children[-1]
            yield f"{indent}{'└── ' if last else '├── '}{node.__name__}\n"
            yield from below(node, indent + ("    " if last else "│   "))

    return "Exception\n" + "".join(below(Exception, ""))


def linked(page: str) -> str:
    anchors = dict.fromkeys(described(page), "defaults-and-limits")
    anchors |= {node.__name__: "errors" for node in errors()} | {"Event": "events"}
    anchors |= {node.__name__: "events" for node in get_args(client.Event)}
    for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE):  # as GitHub makes them
        anchors[heading] = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")

    def link(name: re.Match[str]) -> str:
        anchor = anchors.get(name[1]) or anchors.get(name[1].partition(".")[0])
        return f"[{name[0]}](#{anchor})" if anchor and anchor != here else name[0]

    lines, is_code, here = [], False, ""
    for line in page.splitlines():
        is_code ^= line.startswith("```")
        head, text = line, ""
        if line.startswith("#"):
            here = anchors[line.lstrip("# ")]
        elif not is_code and not line.startswith("    "):
            row = re.match(r"\| `\w+` \|", line)
            head, text = (row[0], line[row.end() :]) if row else ("", line)
        lines.append(head + re.sub(r"`([\w.]+)`", link, text))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(reference())
