"""What `restante.waku` has for other programs: its names, their types, and what importing it loads."""

from __future__ import annotations

import ast
import pkgutil
import sys
from importlib import import_module
from pathlib import Path
from typing import assert_type

import pytest

from restante import waku
from restante.waku import Envelope, EnvelopeStream, Key, Subscription, fetch, new_key, subscribe
from support.processes import run

HEAVY = {"aiohttp", "picows", "uvloop", "typer", "rich", "pyspark", "pyarrow", "plyvel", "prometheus_client"}
"""What a program that uses the library has no use for."""

LOADED = """
import sys
import restante.waku
first = sorted(sys.modules)
for name in restante.waku.__all__:
    getattr(restante.waku, name)
print(*first)
print(*sorted(sys.modules))
"""


def test_importing_the_library_loads_nothing_heavy_nor_does_any_name_of_it() -> None:
    done = run(sys.executable, "-c", LOADED)
    assert done.returncode == 0, done.stderr
    first, last = (set(line.split()) for line in done.stdout.splitlines())
    assert {each for each in first if each.startswith("restante.")} == {
        *("restante.waku", "restante.common", "restante.common.lazy_names")
    }
    assert "asyncio" not in first
    assert not HEAVY & {each.partition(".")[0] for each in last}


def imported() -> dict[str, tuple[str, str]]:
    """Return what type checkers read: each name, its module and its name there."""
    tree = ast.parse(Path(waku.__file__).read_text())
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_each_name_is_what_type_checkers_read() -> None:
    for name, (module, there) in imported().items():
        assert getattr(waku, name) is getattr(import_module(module), there), name
    assert sorted(imported()) == waku.__all__


def test_no_name_is_a_module_s() -> None:
    """A module would take the place of the name when it is imported."""
    assert not {each.name for each in pkgutil.iter_modules(waku.__path__)} & set(waku.__all__)


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match=r"module 'restante.waku' has no attribute 'nothing'"):
        _ = vars(waku)["__getattr__"]("nothing")
    assert set(waku.__all__) <= set(dir(waku))


def test_the_names_have_their_types() -> None:
    """Mypy checks this; and a package with types says so."""
    assert_type(new_key(), Key)
    stream = fetch(f"enode://{new_key().public.hex()}@127.0.0.1:1", topics=None)
    assert_type(stream, EnvelopeStream)
    assert_type(stream.state, waku.FetchState)
    live = subscribe(waku.Enode(new_key().public, "127.0.0.1", 1), topics=[b"abcd"])
    assert_type(live, Subscription)
    assert_type(waku.make_envelope(b"abcd", b""), Envelope)
    assert (Path(waku.__file__).parents[1] / "py.typed").exists()
