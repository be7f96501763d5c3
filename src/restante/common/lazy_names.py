"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package that has names of other modules.

    Args:
        package: the name of the package.
        modules: for each module its names, separated by spaces. A name that is another one there is written
            here=there.

    """
    sources = {
        name.partition("=")[0]: (module, name.rpartition("=")[2])
        for module, names in modules.items()
        for name in names.split()
    }

    def find(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, source_name = sources[name]
        value = getattr(import_module(module), source_name)
        setattr(sys.modules[package], name, value)
        return value

    return find
