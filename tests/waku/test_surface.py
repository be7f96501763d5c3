"""What `restante.waku` has for other programs: its names, their types, and what importing it loads."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

from restante import waku
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


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match=r"module 'restante.waku' has no attribute 'nothing'"):
        _ = vars(waku)["__getattr__"]("nothing")
    assert set(waku.__all__) <= set(dir(waku))
