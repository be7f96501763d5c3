"""Every public name of the package is described."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping
from importlib import import_module

import restante


def public(names: Mapping[str, object]) -> list[tuple[str, object]]:
    return [(name, value) for name, value in names.items() if not name.startswith("_")]


def test_every_public_name_has_a_docstring_or_the_name_that_it_overrides() -> None:
    """What asyncio and picows call, and what a base class describes, need none of its own (`inspect.getdoc`)."""
    undocumented = []
    for info in pkgutil.walk_packages(restante.__path__, "restante."):
        if info.name == "restante.__main__":
            continue
        for name, value in public(vars(import_module(info.name))):
            if getattr(value, "__module__", None) != info.name:
                continue
            members = public(vars(value)) if inspect.isclass(value) else []
            described = [(name, value), *((f"{name}.{member}", getattr(value, member)) for member, _ in members)]
            undocumented += [
                f"{info.name}: {qualified_name}"
                for qualified_name, described_object in described
                if (callable(described_object) or isinstance(described_object, property))
                and not inspect.getdoc(described_object)
            ]
    assert not undocumented
