"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, modules: Mapping[str, str], extra: str | None = None) -> Callable[[str], object]:
    """Return the `__getattr__` of a package that has names of other modules.

    Args:
        package: the name of the package.
        modules: for each module its names, separated by spaces. A name that is another one there is written
            here=there.
        extra: what the modules need. If it is not installed, the error says how to install it.

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
        try:
            value = getattr(import_module(module), source_name)
        except ModuleNotFoundError as error:
            if extra is None or (error.name or "").startswith("restante"):
                raise
            from restante.common.extras import how_to_install

            reason = f"{package}.{name} needs the extra '{extra}': {how_to_install(extra)}"
            raise ModuleNotFoundError(reason, name=error.name) from None
        setattr(sys.modules[package], name, value)
        return value

    return find
