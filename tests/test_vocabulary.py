"""The project's words (CONTRIBUTING.md, "Words"): plain, the field's own, and one for each thing."""

from __future__ import annotations

import ast
import functools
import inspect
import pkgutil
import re
from collections import defaultdict
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest

import restante

ROOT = Path(restante.__file__).parent
PROJECT = ROOT.parent.parent

REPLACED = {
    "accounts": "quotas",
    "ask": "fetch",
    "books": "quotas",
    "caller": "outbound connection",
    "chores": "maintenance",
    "commonest": "top n",
    "deaf": "ignores input",
    "debtors": "over rate",
    "desk": "dispatcher",
    "door": "admission",
    "errand": "actions",
    "follow": "subscribe",
    "hear": "receive, take, handle",
    "house": "server context",
    "keeper": "connection handler",
    "leavers": "sides to remove",
    "letter": "message",
    "linkless": "no hardlink codes",
    "link": "connection",
    "manners": "welcome options",
    "narrator": "event printer",
    "notes": "commit info",
    "office": "commit loop",
    "packed": "snappy",
    "partfiles": "data files",
    "rhythm": "interval",
    "riders": "deferred records",
    "roomless": "no space codes",
    "rouse": "wake up",
    "settle": "merge, apply, finish, whichever it is",
    "settled": "merged, applied, finished, whichever it is",
    "strain": "abuse score",
    "sweep": "pruning",
    "takeover": "reference import",
    "tally": "histogram",
    "teller": "printer",
    "tide": "load level",
    "unheeded": "untrusted proxy",
}
"""Words that names in the code no longer have, and what took their place."""

PLAIN_IN_TESTS = {
    "deaf": "a client that does not read",
    "hear": "read what the other end of a connection sends",
    "letter": "an envelope and what it contains, or a character",
    "link": "a symbolic link, or one in a document",
    "notes": "a text that a program or a document writes down",
    "settle": "wait until nothing is pending",
    "settled": "nothing is pending",
}
"""Words above that names in `tests/` and `bench/` may have, with these meanings only."""

BARE = {"AGAIN", "DAY", "ENOUGH", "FEW", "LARGEST", "LONGEST", "LOOKS", "MANY", "MOST", "MUCH", "PLENTY"}
"""Names that say nothing alone: a constant says what it limits, and its unit."""

NOT_IMPERATIVE = re.compile(r"(Give|Tell|Have|See|Take)s?\b")
"""How no docstring begins: it says what is returned or done ("Return the …")."""

NO_VERB = re.compile(r"(Whether|How|Why|Where|When|What|Who|The|An?|Its|If)\b")
"""How the docstring of a property may begin, which is a value, but that of a function may not."""

REGISTRIES = {"app", "BUILDS", "BUILD"}
"""Names that every module of a family has."""


@functools.cache
def parsed(folder: Path = ROOT) -> list[tuple[str, ast.Module]]:
    """Return each module's path below a folder, and its syntax tree."""
    return [(str(path.relative_to(folder)), ast.parse(path.read_text())) for path in sorted(folder.rglob("*.py"))]


def defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module or class defines."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def words(name: str) -> set[str]:
    """Return the words of a name, however it is written."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [(ROOT, set()), (PROJECT / "tests", set(PLAIN_IN_TESTS)), (PROJECT / "bench", set(PLAIN_IN_TESTS))],
    ids=["src", "tests", "bench"],
)
def test_no_name_has_a_word_that_was_replaced(folder: Path, allowed: set[str]) -> None:
    found, forbidden = [], set(REPLACED) - allowed
    for path, module in parsed(folder):
        names = [*Path(path).with_suffix("").parts]
        for node in ast.walk(module):
            match node:
                case (
                    ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name)
                ):
                    names.append(name)
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.append(name)
        found += [f"{path}: {name}: {REPLACED[word]}" for name in names for word in words(name) & forbidden]
    assert not found


def test_no_constant_is_named_by_an_adverb() -> None:
    found = [
        f"{path}: {name}"
        for path, module in parsed()
        for node in module.body
        for name in defined(node)
        if name.lstrip("_") in BARE
    ]
    assert not found


def test_no_log_event_has_a_word_that_was_replaced() -> None:
    for path, module in parsed():
        for node in ast.walk(module):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log")), args=[ast.Constant(value=str(event)), *_]
                ):
                    assert not words(event) & set(REPLACED), f"{path}: {event}"
                case ast.Subscript(
                    value=ast.Attribute(attr="counts" | "_counts"), slice=ast.Constant(value=str(event))
                ):
                    assert not words(event) & set(REPLACED), f"{path}: {event}"  # logged once a minute


def test_a_part_has_one_meaning_for_each_public_class_and_constant() -> None:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, module in parsed():
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for name in defined(node):
                if not name.startswith("_") and name not in REGISTRIES:
                    found[path.partition("/")[0], name].append(path)
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert not twice


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    found = []
    for path, module in parsed():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                said = ast.get_docstring(node) or ""
                is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
                if NO_VERB.match(said) and not is_property:
                    found.append(f"{path}: {node.name}: {said.partition(chr(10))[0]}")
    assert not found


def test_every_public_name_has_a_docstring_or_the_name_that_it_overrides() -> None:
    """What asyncio and picows call, and what a base class describes, need none of its own (`inspect.getdoc`)."""
    bare = []
    for info in pkgutil.walk_packages(restante.__path__, "restante."):
        if info.name == "restante.__main__":
            continue
        for name, value in public(vars(import_module(info.name))):
            if getattr(value, "__module__", None) != info.name:
                continue
            members = public(vars(value)) if inspect.isclass(value) else []
            described = [(name, value), *((f"{name}.{each}", getattr(value, each)) for each, _ in members)]
            bare += [
                f"{info.name}: {each}"
                for each, what in described
                if (callable(what) or isinstance(what, property)) and not inspect.getdoc(what)
            ]
    assert not bare


def public(names: Mapping[str, object]) -> list[tuple[str, object]]:
    return [(name, value) for name, value in names.items() if not name.startswith("_")]


@pytest.mark.parametrize("folder", [ROOT, PROJECT / "tests", PROJECT / "bench"], ids=["src", "tests", "bench"])
def test_docstrings_begin_with_what_is_returned_or_done(folder: Path) -> None:
    found = []
    for path, module in parsed(folder):
        for node in ast.walk(module):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                said = ast.get_docstring(node) or ""
                if NOT_IMPERATIVE.match(said):
                    found.append(f"{path}: {said.partition(chr(10))[0]}")
    assert not found
