"""The reference of the client library, docs/client/reference.md, from its docstrings and signatures.

The order of its sections, and what stands between them, are written by hand: the sections `### NAME`, the tables and
the tree of errors are replaced. To write it anew: PYTHONPATH=src:tests .venv/bin/python -m client.reference
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from restante import client
from support.documents import ROOT

PATH: Final = ROOT / "docs" / "client" / "reference.md"
PACKAGE: Final = ROOT / "src" / "restante" / "client"

SECTION: Final = re.compile(r"^### (\w+)\n.*?(?=^##? |^### |\Z)", re.MULTILINE | re.DOTALL)
TABLE: Final = re.compile(r"^\| (event|error|name) \|.*\n(?:\|.*\n?)*", re.MULTILINE)
TREE: Final = re.compile(r"^Exception\n(?:[├└│ ].*\n)*", re.MULTILINE)
LINK: Final = re.compile(r"\[(`[\w.]+`)\]\(#[^)]*\)")

HEADS: Final = {
    "event": ["event", "attributes", "meaning"],
    "error": ["error", "mood", "exit code", "meaning"],
    "name": ["name", "value", "meaning"],
}

RECEIVERS: Final = {"SentMessage": "sent", "TimingLog": "timing"} | dict.fromkeys(
    ("OfferedFile", "OfferedDirectory", "OfferedText"), "offered"
)
"""What an object is called in signatures, if not by the last word of its class."""

ENTRIES: Final = {"__aiter__": ": async for", "__str__": ": str"}
"""How methods that are not called by their names are named in headings."""

WIDTH: Final = 110
"""Characters of a signature in one line. A longer one has a line for node argument."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Attribute(NamedTuple):
    """An attribute of a class, or a constant of a module."""

    name: str
    type: str
    meaning: str


@functools.cache
def module(name: str) -> list[ast.stmt]:
    path = ROOT / "src" / Path(*name.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()).body


@functools.cache
def homes() -> dict[str, str]:
    """Return the module in which each constant of the library is defined."""
    return {
        name: ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
        for file in sorted(PACKAGE.rglob("*.py"))
        for name in re.findall(r"^([A-Z]\w*)(?:: [\w.]+)? = ", file.read_text(), re.MULTILINE)
    }


def errors() -> list[type[BaseException]]:
    public = [getattr(client, name) for name in sorted(client.__all__)]
    return [node for node in public if isinstance(node, type) and issubclass(node, BaseException)]


def described(page: str) -> list[str]:
    """Return the names that have a section or a row of a table on the page."""
    rows = (re.findall(r"^\| `(\w+)`", table[0], re.MULTILINE) for table in TABLE.finditer(page))
    return [*(node[1] for node in SECTION.finditer(page)), *(name for names in rows for name in names)]


def reference() -> str:
    """Return the page."""
    page = LINK.sub(r"\1", PATH.read_text())
    page = SECTION.sub(lambda node: "\n\n".join(section(node[1])) + "\n\n", page)
    page = TABLE.sub(lambda node: new_table(node[1], described(node[0])), page)
    return linked(TREE.sub(tree(), page))


# ── sections ─────────────────────────────────────────────────────────────────────────────────────


def section(name: str) -> list[str]:
    """Return what is said of a class or function, in paragraphs."""
    home = getattr(client, name).__module__
    definition = definition_of(getattr(client, name))
    if isinstance(definition, Function):
        wait = "await " if isinstance(definition, ast.AsyncFunctionDef) else ""
        return [f"### {name}", code(signature(definition, home, wait + name)), *explained(definition)]
    assert isinstance(definition, ast.ClassDef)
    parts = [f"### {name}", *explained(definition)]
    methods = members(definition, home)
    for node in methods:
        if node.name == "__init__" and "Args:" in (ast.get_docstring(node) or ""):
            parts.append(code(signature(node, home, name, bound=True).removesuffix(" -> None")))
            parts += explained(node)
    if rows := [[f"`{node.name}`", f"`{node.type}`", node.meaning] for node in public_attributes(definition, home)]:
        parts.append(table(["attribute", "type", "meaning"], rows).rstrip("\n"))
    for node in methods:
        if not decorated(node, "property") and (call := call_of(name, home, node)):
            parts += [f"#### {name}{ENTRIES.get(node.name, f'.{node.name}')}", code(call), *explained(node)]
    return parts


def code(text: str) -> str:
    return f"```\n{text}\n```"


def members(kind: ast.ClassDef, home: str) -> list[Function]:
    """Return the functions of a class, and those that it has from private bases of its module."""
    own = [node for node in kind.body if isinstance(node, Function)]
    names = {node.name for node in own} | {node.id for node in kind.bases if isinstance(node, ast.Name)}
    for base in module(home):
        if isinstance(base, ast.ClassDef) and base.name.startswith("_") and base.name in names:
            own += [node for node in members(base, home) if node.name not in names]
    return own


def decorated(function: Function, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in function.decorator_list)


def call_of(name: str, home: str, method: Function) -> str | None:
    """Return how a method is called, or None if it is not for programs."""
    receiver = RECEIVERS.get(name) or re.findall("[A-Z][a-z]+", name)[-1].lower()

    def yielded() -> str:
        assert isinstance(method.returns, ast.Subscript)
        return f" -> {type_of(method.returns.slice)}"

    if method.name == "__aiter__":
        return f"async for message in {receiver}{yielded()}"
    if method.name == "__str__":
        return f"str({receiver}) -> str"
    if method.name.startswith("_"):
        return None
    if decorated(method, "classmethod"):
        return signature(method, home, f"{name}.{method.name}", bound=True).replace("-> Self", f"-> {name}")
    call = signature(method, home, f"{receiver}.{method.name}", bound=True)
    head, yields, _ = call.rpartition(" -> AsyncIterator[")
    if decorated(method, "asynccontextmanager"):
        return f"async with {head} as state"
    if yields:
        return f"async for message in {head}{yielded()}"
    return f"await {call}" if isinstance(method, ast.AsyncFunctionDef) else call


def parts_of(documented: ast.ClassDef | Function) -> tuple[str, dict[str, list[tuple[str, str]]]]:
    """Return a docstring's text, and the entries `name: meaning` of its sections."""
    text, *sections = re.split(r"^(Args|Raises):\n", ast.get_docstring(documented) or "", flags=re.MULTILINE)
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


def explained(documented: ast.ClassDef | Function) -> list[str]:
    """Return a docstring in paragraphs, with its arguments and errors as lists."""
    text, entries = parts_of(documented)
    lists = {title: [f"* `{name}`: {meaning}" for name, meaning in rows] for title, rows in entries.items()}
    parts = [text, "\n".join(lists.get("Args", ())), "\n".join(["Raises:\n", *lists.get("Raises", ())])]
    return [node for node in parts if node and node != "Raises:\n"]


def public_attributes(kind: ast.ClassDef, home: str) -> Iterator[Attribute]:
    """Yield the attributes of a class: its fields, those that `__init__` explains, and its properties."""
    collected = attributes(kind.body)
    for node in members(kind, home):
        if node.name == "__init__":
            collected += [attribute for attribute in attributes(node.body) if attribute.meaning]
        elif decorated(node, "property"):
            assert node.returns is not None
            collected.append(Attribute(node.name, type_of(node.returns), in_one_line(ast.get_docstring(node))))
    yield from (node for node in collected if not node.name.startswith("_"))


def attributes(body: Sequence[ast.stmt]) -> list[Attribute]:
    """Return the names that statements assign to, `self.x` among them, with the text literals below them."""
    collected = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        match following:
            case ast.Expr(value=ast.Constant(value=str(text))):
                meaning = in_one_line(text)
            case _:
                meaning = ""
        match node:
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), annotation=annotation):
                collected.append(Attribute(name, type_of(annotation), meaning))
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)]):
                collected.append(Attribute(name, "", meaning))
    return collected


def in_one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def signature(function: Function, home: str, name: str, *, bound: bool = False) -> str:
    """Return how a function is called, under a name. `bound` leaves out the first argument."""
    given = function.args
    without: list[ast.expr | None] = [None] * (len(given.args) - len(given.defaults))
    positional = zip(given.args, [*without, *given.defaults], strict=True)
    takes = [argument(node, default, home) for node, default in positional][bound:]
    if given.vararg is not None:
        takes.append("*" + argument(given.vararg, None, home))
    elif given.kwonlyargs:
        takes.append("*")
    takes += [argument(*node, home) for node in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        takes.append("**" + argument(given.kwarg, None, home))
    returns = "" if function.returns is None else f" -> {type_of(function.returns)}"
    line = f"{name}({', '.join(takes)}){returns}"
    return line if len(line) <= WIDTH else "\n".join([f"{name}(", *(f"    {node}," for node in takes), f"){returns}"])


def type_of(annotation: ast.expr) -> str:
    """Return a type as readers know it."""
    match annotation:
        case ast.Subscript(value=ast.Name("Annotated"), slice=ast.Tuple([kind, *_])):  # what is checked is not shown
            annotation = kind
    return ast.unparse(annotation).replace("tls.", "ssl.")


def argument(argument: ast.arg, default: ast.expr | None, home: str) -> str:
    """Return an argument with its default: a constant's name if programs can import it, else the value."""
    kind = "" if argument.annotation is None else f": {type_of(argument.annotation)}"
    if default is None:
        return f"{argument.arg}{kind}"
    if isinstance(default, ast.Name) and default.id in client.__all__:
        return f"{argument.arg}{kind} = {default.id}"
    value = eval(ast.unparse(default), {**vars(builtins), **vars(import_module(home))})  # of our own sources
    return f"{argument.arg}{kind} = {value!r}"


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(node.replace("|", "\\|") for node in row) + " |\n" for row in cells)


def new_table(kind: str, names: list[str]) -> str:
    """Return a table of all events, of all errors, or of the constants with these names."""
    rows = {
        "event": map(event_row, get_args(client.Event)),
        "error": map(error_row, errors()),
        "name": map(constant_row, names),
    }
    return table(HEADS[kind], rows[kind])


def definition_of(public: Any) -> Any:
    """Return where a class or function is defined, under a name that may be another."""
    (definition,) = [node for node in module(public.__module__) if getattr(node, "name", None) == public.__name__]
    return definition


def event_row(event: type[Any]) -> list[str]:
    collected = list(public_attributes(definition_of(event), event.__module__))
    takes = ", ".join(f"`{node.name}: {node.type}`" for node in collected)
    notes = [f"`{node.name}`: {node.meaning}" for node in collected if node.meaning]
    return [f"`{event.__name__}`", takes, " ".join([in_one_line(ast.get_docstring(definition_of(event))), *notes])]


def error_row(error: Any) -> list[str]:
    mood = f"`{error.mood}`" if hasattr(error, "mood") else ""
    text = in_one_line(parts_of(definition_of(error))[0])
    return [f"`{error.__name__}`", mood, str(getattr(error, "exit_code", "")), text]


def constant_row(name: str) -> list[str]:
    """Return a constant that programs can import, or a limit, with its unit if that is large."""
    value = getattr(import_module(homes()[name]), name)
    (meaning,) = [node.meaning for node in attributes(module(homes()[name])) if node.name == name]
    if name in client.__all__:
        shown = f"`{str(value).removeprefix('typing.')}`"
    elif name.endswith("BYTES") and value % 1024**2 == 0:
        shown = f"{value / 1024**2:g} MiB"
    else:
        shown = f"{value:,g}" if value < 10**6 else f"{value:,}"
    return [f"`{name}`", shown, meaning]


def tree() -> str:
    """Return the errors as a tree, with their base classes in Python."""

    def below(root: type[BaseException], indent: str) -> Iterator[str]:
        children = [node for node in errors() if root in node.__bases__]
        for node in children:
            last = node is children[-1]
            yield f"{indent}{'└── ' if last else '├── '}{node.__name__}\n"
            yield from below(node, indent + ("    " if last else "│   "))

    return "Exception\n" + "".join(below(Exception, ""))


# ── links ────────────────────────────────────────────────────────────────────────────────────────


def linked(page: str) -> str:
    """Return the page with links from names in its text to where they are described."""
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
