"""Definitions in the sources: signatures, and docstrings of functions, classes, attributes and constants."""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

from support.documents import ROOT

SOURCES: Final = ROOT / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef

WIDTH: Final = 110
"""Characters of a signature in one line. A longer one has a line for each argument."""


class Attribute(NamedTuple):
    """An attribute of a class, or a constant of a module."""

    name: str
    type: str
    meaning: str


class Said(NamedTuple):
    """A docstring in parts."""

    text: str
    args: list[tuple[str, str]]
    raises: list[tuple[str, str]]


@functools.cache
def module(name: str) -> ast.Module:
    """Return the syntax tree of a module of the project."""
    path = SOURCES / Path(*name.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def exported(package: str) -> dict[str, tuple[str, str]]:
    """Return where each name comes from that a package imports for type checkers: module, and name there."""
    return {
        alias.asname or alias.name: (each.module or "", alias.name)
        for part in module(package).body
        if isinstance(part, ast.If)
        for each in part.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }


def class_of(home: str, name: str) -> ast.ClassDef | None:
    """Return a class of a module, or None if the name is not that of a class."""
    found = [each for each in module(home).body if isinstance(each, ast.ClassDef) and each.name == name]
    return found[0] if found else None


def with_private_bases(home: str, kind: ast.ClassDef) -> ast.ClassDef:
    """Return a class that also has what its bases of the same module define, if their names are private."""
    names = [each.id for each in kind.bases if isinstance(each, ast.Name) and each.id.startswith("_")]
    bases = [with_private_bases(home, base) for name in names if (base := class_of(home, name)) is not None]
    inherited = [each for base in bases for each in base.body if isinstance(each, Function)]
    own = {each.name for each in members(kind)}
    found = copy.copy(kind)  # the syntax tree is cached
    found.body = [*kind.body, *(each for each in inherited if each.name not in own)]
    return found


def function_of(home: str, name: str) -> Function:
    """Return a function of a module."""
    [found] = [each for each in module(home).body if isinstance(each, Function) and each.name == name]
    return found


def constant(home: str, name: str) -> Attribute:
    """Return a constant of a module. Its type is empty."""
    [found] = [each for each in attributes(module(home).body) if each.name == name]
    return found


def attributes(body: Iterable[ast.stmt]) -> list[Attribute]:
    """Return the names that statements assign to, `self.x` among them, with the text literals below them."""
    found: list[Attribute] = []
    for each, following in _pairs(list(body)):
        match each:
            case (
                ast.AnnAssign(target=ast.Name(id=name), annotation=annotation)
                | ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation)
            ):
                found.append(Attribute(name, type_of(annotation), _literal(following)))
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.Assign(targets=[ast.Attribute(attr=name)]):
                found.append(Attribute(name, "", _literal(following)))
    return found


def members(kind: ast.ClassDef) -> list[Function]:
    """Return the functions of a class."""
    return [each for each in kind.body if isinstance(each, Function)]


def decorated(function: Function, name: str) -> bool:
    """Return whether a function has a decorator of this name."""
    return any(isinstance(each, ast.Name) and each.id == name for each in function.decorator_list)


def said(documented: ast.ClassDef | Function) -> Said:
    """Return a docstring in parts."""
    text = ast.get_docstring(documented) or ""
    parts = re.split(r"^(Args|Raises):\n", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return Said(parts[0].strip(), _entries(sections.get("Args", "")), _entries(sections.get("Raises", "")))


def _entries(section: str) -> list[tuple[str, str]]:
    """Return the entries `name: meaning` of a section. A line that is indented further continues the one before."""
    joined = re.sub(r"\n {5,}", " ", section.strip("\n"))
    found = []
    for line in filter(str.strip, joined.splitlines()):
        name, colon, meaning = line.strip().partition(": ")
        assert colon, line
        found.append((name, meaning))
    return found


# ── signatures ───────────────────────────────────────────────────────────────────────────────────


def signature(function: Function, home: str, name: str, *, bound: bool = False) -> str:
    """Return how a function is called, under a name, with the values of defaults that are not public names.

    `bound` leaves out the first argument.
    """
    takes = [*_positional(function.args, home)[1 if bound else 0 :]]
    if function.args.vararg is not None:
        takes.append("*" + _argument(function.args.vararg, None, home))
    elif function.args.kwonlyargs:
        takes.append("*")
    named = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    takes += [_argument(each, default, home) for each, default in named]
    if function.args.kwarg is not None:
        takes.append("**" + _argument(function.args.kwarg, None, home))
    returns = "" if function.returns is None else f" -> {type_of(function.returns)}"
    line = f"{name}({', '.join(takes)}){returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in takes), f"){returns}"])


def type_of(annotation: ast.expr) -> str:
    """Return a type as readers know it."""
    match annotation:
        case ast.Subscript(value=ast.Name("Annotated"), slice=ast.Tuple([kind, *_])):  # what is checked is not shown
            annotation = kind
    return ast.unparse(annotation).replace("tls.", "ssl.")


def _positional(takes: ast.arguments, home: str) -> list[str]:
    without: Sequence[ast.expr | None] = [None] * (len(takes.args) - len(takes.defaults))
    return [
        _argument(each, default, home) for each, default in zip(takes.args, [*without, *takes.defaults], strict=True)
    ]


def _argument(argument: ast.arg, default: ast.expr | None, home: str) -> str:
    kind = "" if argument.annotation is None else f": {type_of(argument.annotation)}"
    return f"{argument.arg}{kind}" + ("" if default is None else f" = {shown_default(default, home)}")


def shown_default(default: ast.expr, home: str) -> str:
    """Return a default: a constant's name if programs can import it, else the value."""
    if isinstance(default, ast.Name) and default.id in exported("restante.client"):
        return default.id
    names = {**vars(builtins), **vars(import_module(home))}
    return repr(eval(ast.unparse(default), names))  # an expression of our own sources


def _pairs(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    return zip(body, [*body[1:], None], strict=True)


def _literal(statement: ast.stmt | None) -> str:
    """Return the text of a statement that is a text only, in one line."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""
