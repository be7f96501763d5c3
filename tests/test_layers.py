"""Which folder may import which (docs/design.md); and every public name is described."""

from __future__ import annotations

import ast
import functools
import inspect
import pkgutil
import re
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import restante

ROOT = Path(restante.__file__).parent


def by_name(text: str) -> dict[str, list[str]]:
    """Return what lines name, by the name before the colon. Several lines may have the same one."""
    named: dict[str, list[str]] = {}
    for name, rest in re.findall(r"^ *(\S+): (.+)$", text, re.MULTILINE):
        named.setdefault(name, []).extend(rest.split())
    return named


_LAYERS = """
    mailbox: protocol core settings store reference_import server cli
    relay: protocol core settings store reference_import server cli
    waku: envelope devp2p protocol limits settings passwords defaults key_file archive files connection client node
    waku: cli
    client: errors arguments defaults protocol files events core tasks timing_log connection
    client: wormhole transit transfer journal_mode cli
    timing: logs model transfers rank_test comparison outputs cli
    demo: fleet load events people simulation server client conversations guessing usage envelopes
    demo: relay generate
    pipeline: schemas spark lake clean sources tables views query gaps report steps extract ingest ingest_extracts
    pipeline: build cli
"""
LAYERS = by_name(_LAYERS)
"""The folders and modules of each part: each may import those before it."""

_BETWEEN_PARTS = """
    demo.client: client.protocol.server_messages client.timing_log
    demo.conversations: client.timing_log
    demo.envelopes: waku.archive waku.envelope waku.protocol.policy
    demo.relay: relay.core relay.protocol.request relay.store
    demo.server: mailbox.core mailbox.protocol mailbox.server.commit_loop mailbox.server.trace mailbox.settings
    demo.server: mailbox.store
    pipeline.clean: timing.logs waku.archive.ids waku.envelope
    pipeline.gaps: waku.files
    pipeline.sources: timing.logs waku.envelope waku.files
    pipeline.report: timing.model
    pipeline.tables: timing.model
"""
BETWEEN_PARTS = {(importer, name) for importer, names in by_name(_BETWEEN_PARTS).items() for name in names}
"""What one part may import of another. All may import `common`; `cli`, also that of a part, may import everything."""

_PURE = """
    mailbox.protocol mailbox.core mailbox.reference_import.translation relay.protocol relay.core
    relay.reference_import.translation
    waku.envelope waku.devp2p waku.protocol waku.limits waku.archive.ids waku.archive.query waku.node.pool
    waku.node.mailserver waku.connection.quotas
    waku.connection.sender_pace waku.node.save_schedule waku.client.ranges waku.client.inbox waku.client.requester
    client.protocol client.core client.files.names
    pipeline.clean pipeline.sources.marks pipeline.report.periods pipeline.report.model
    pipeline.report.top_rows pipeline.report.values pipeline.report.changes
    pipeline.report.changes_table pipeline.report.charts pipeline.report.sections pipeline.report.making
    pipeline.report.csv_json pipeline.report.summary timing.logs timing.model
    demo.simulation common.units common.texts common.content_policy common.memory_holders common.client_address
    common.address_registry common.newcomer_admission common.refusals common.reference_rows
    timing.outputs.text timing.outputs.trace_event timing.outputs.compare_text timing.outputs.page
    timing.outputs.wording
"""
PURE = _PURE.split()
"""Folders and modules that know no I/O, no clock and no randomness: these are arguments."""

IMPURE = {
    *("asyncio", "sqlite3", "socket", "time", "random", "secrets", "os"),
    *("picows", "uvloop", "aiohttp", "structlog", "pyspark", "deltalake"),
}


@functools.cache
def modules() -> dict[str, Path]:
    files = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(part for part in parts if part != "__init__")] = path
    del files[""], files["__main__"]
    return files


@functools.cache
def imports(module: str) -> frozenset[str]:
    return frozenset(name.removeprefix("restante.") for name in imported_by(modules()[module]))


def imported_by(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def own_imports(module: str) -> set[str]:
    """Return the modules of ours that a module imports. A package counts if something in its own file is imported."""
    named = imports(module) & set(modules())
    of_packages = {name.rpartition(".")[0] for name in imports(module) - set(modules())} & set(modules())
    on_the_way = {name for name in named if any(other.startswith(name + ".") for other in named)} - of_packages
    return set(named | of_packages) - on_the_way - {module}


def inside(module: str, folders: Iterable[str]) -> bool:
    return any(module == folder or module.startswith(folder + ".") for folder in folders)


def split(module: str) -> tuple[str, str]:
    part, _, rest = module.partition(".")
    return part, rest.partition(".")[0]


def test_every_folder_of_a_part_has_its_place() -> None:
    existing = {split(module) for module in modules()}
    assert {part for part, _ in existing} == {"cli", "common", *LAYERS}
    for part, layers in LAYERS.items():
        assert sorted(folder for owner, folder in existing if owner == part and folder) == sorted(layers)


def test_a_folder_imports_only_those_before_it_and_another_part_only_where_the_rules_allow_it() -> None:
    """A library's package names what other programs may use: its own modules import one another."""
    used = set()
    for module, imported in [(one, another) for one in modules() for another in own_imports(one)]:
        (part, folder), (where, other) = split(module), split(imported)
        assert part == "cli" or imported not in {"waku", "client"}, f"{module} imports {imported}"
        if part == where:
            layers = LAYERS.get(part, [])
            if folder in layers and other in layers:
                assert layers.index(other) <= layers.index(folder), f"{module} imports {imported}"
                assert (part, folder, other) != ("waku", "node", "client"), f"{module} imports {imported}"
        elif "cli" not in {part, folder} and where != "common":
            rules = {rule for rule in BETWEEN_PARTS if inside(module, rule[:1]) and inside(imported, rule[1:])}
            assert rules, f"{module} imports {imported}"
            used |= rules
    assert used == BETWEEN_PARTS


def test_no_modules_and_no_measurements_import_one_another_in_a_circle() -> None:
    """Imports for types count, too."""
    TopologicalSorter({module: own_imports(module) for module in modules()}).prepare()
    paths = {path.stem: path for path in (ROOT.parents[1] / "bench").glob("*.py")}
    assert "mailbox" in paths
    TopologicalSorter({name: imported_by(path) & set(paths) for name, path in paths.items()}).prepare()


def test_pure_modules_import_no_io_no_clock_and_no_randomness() -> None:
    for name in PURE:
        assert any(inside(module, [name]) for module in modules()), name
    for module in modules():
        if inside(module, PURE):
            named = {name.partition(".")[0] for name in imports(module)}
            assert not named & IMPURE, f"{module} imports {named & IMPURE}"


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
            items = (value, *(getattr(value, member) for member, _ in members))
            described = (item for item in items if callable(item) or isinstance(item, property))
            undocumented += [(info.name, name, item) for item in described if not inspect.getdoc(item)]
    assert not undocumented
