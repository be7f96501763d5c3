"""What `import restante.client` costs, and that each of its names is what a type checker reads."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

from restante import client
from support.processes import run

BEFORE_A_CONNECTION = {"picows", "python_socks", "aiohttp", "typer", "uvloop", "twisted", "segno"}
"""Packages that no program needs before its first connection, or at all."""

LOADED = """
import sys
import restante.client
print(*(name for name in sys.modules if name.startswith("restante.")))
for name in restante.client.__all__:
    getattr(restante.client, name)
print(*{name.partition(".")[0] for name in sys.modules})
"""


def test_the_import_loads_names_when_they_are_used_and_nothing_that_only_a_connection_needs() -> None:
    done = run(sys.executable, "-c", LOADED)
    assert done.returncode == 0, done.stderr
    first, last = (set(line.split()) for line in done.stdout.splitlines())
    assert first == {"restante.client", "restante.common", "restante.common.lazy_names"}
    assert not BEFORE_A_CONNECTION & last


def test_each_name_is_what_type_checkers_read() -> None:
    imported = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for part in ast.parse(Path(client.__file__).read_text()).body
        if isinstance(part, ast.If)
        for node in part.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(imported) == sorted(client.__all__)
    for name, (module, there) in imported.items():
        assert getattr(client, name) is getattr(import_module(module), there), name


def test_another_name_is_none_of_the_package() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Wormholes'"):
        getattr(client, "Wormholes")  # noqa: B009 - a type checker knows, too
    assert set(client.__all__) <= set(dir(client))
