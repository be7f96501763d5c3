"""Arrows point down only: cli → shells → engines → cores → words (docs/design.md, "The house")."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import restante

ROOT = Path(restante.__file__).parent

LAYERS: list[set[str]] = [
    # words
    {"restante", "restante.errors", "restante.records", "restante.bucket", "restante.address"},
    {"restante.mailbox", "restante.mailbox.messages", "restante.mailbox.limits", "restante.mailbox.permission"},
    {"restante.waku", "restante.waku.rlp", "restante.waku.tally", "restante.waku.keccak", "restante.waku.bloom"},
    {"restante.waku.envelope", "restante.waku.keys", "restante.waku.packed", "restante.waku.interest"},
    {"restante.waku.hello", "restante.waku.enode", "restante.waku.wire"},
    {"restante.waku.acceptance", "restante.waku.mining"},
    {"restante.waku.limits", "restante.waku.times"},
    {"restante.mailbox.addresses"},
    {"restante.config", "restante.plural", "restante.ops", "restante.ops.logs"},
    {"restante.ops.process", "restante.ops.progress", "restante.ops.ports"},
    {"restante.waku.config"},
    {"restante.mailbox.model", "restante.mailbox.takeover.reference", "restante.mailbox.takeover.report"},
    {"restante.pipeline", "restante.pipeline.schemas", "restante.pipeline.changed"},
    {"restante.pipeline.notes"},
    # cores
    {"restante.waku.ecies", "restante.waku.archive.ids"},
    {"restante.waku.archive.query"},
    {"restante.waku.peer", "restante.waku.pool", "restante.waku.sealing"},
    {"restante.waku.mailserver", "restante.waku.request", "restante.waku.saves"},
    {"restante.waku.completion", "restante.waku.gaps", "restante.waku.inbox"},
    {"restante.waku.errand", "restante.waku.walk"},
    {"restante.waku.requester"},
    {"restante.waku.handshake"},
    {"restante.waku.frames"},
    {"restante.waku.rlpx"},
    {"restante.waku.devp2p"},
    {"restante.mailbox.state", "restante.mailbox.usage", "restante.mailbox.session"},
    {"restante.mailbox.rules"},
    {"restante.mailbox.books"},
    {"restante.mailbox.desk", "restante.mailbox.takeover.translation"},
    {"restante.mailbox.sweep", "restante.mailbox.door", "restante.mailbox.turns"},
    {"restante.pipeline.columns"},
    {"restante.pipeline.cleaning", "restante.pipeline.fields"},
    {"restante.pipeline.envelopes", "restante.pipeline.timing"},
    # engines
    {"restante.pipeline.deltalog", "restante.pipeline.partfiles"},
    {"restante.store"},
    {"restante.store.directory", "restante.store.newfile", "restante.store.worker"},
    {"restante.store.database"},
    {"restante.mailbox.store.load", "restante.mailbox.store.rows", "restante.mailbox.store.schema"},
    {"restante.mailbox.takeover.source", "restante.waku.archive.schema"},
    {"restante.waku.archive"},
    {"restante.waku.archive.rows", "restante.waku.archive.pruning", "restante.waku.archive.reading"},
    {"restante.waku.archive.plans", "restante.waku.archive.readers"},
    {"restante.waku.archive.history"},
    {"restante.waku.archive.checking", "restante.waku.archive.backup", "restante.waku.files"},
    {"restante.waku.files.rlpfile", "restante.waku.files.parquet", "restante.waku.files.leveldb"},
    {"restante.mailbox.store.sqlite", "restante.mailbox.store.status", "restante.waku.archive.sqlite"},
    {"restante.mailbox.store", "restante.mailbox.takeover"},
    # shells
    {"restante.mailbox.takeover.exporting", "restante.mailbox.takeover.importing"},
    {"restante.waku.files.exporting", "restante.waku.files.importing"},
    {"restante.pipeline.sources"},
    {"restante.pipeline.sources.rows", "restante.pipeline.sources.snapshot", "restante.pipeline.sources.marks"},
    {"restante.pipeline.sources.job", "restante.pipeline.sources.schema"},
    {"restante.pipeline.sources.reader", "restante.pipeline.sources.tasks", "restante.pipeline.sources.paths"},
    {"restante.pipeline.sources.archived"},
    {"restante.pipeline.sources.rlps", "restante.pipeline.sources.parquets"},
    {"restante.pipeline.sources.traces", "restante.pipeline.sources.events"},
    {"restante.pipeline.sources.usage", "restante.pipeline.sources.archive", "restante.pipeline.sources.files"},
    {"restante.pipeline.sources.logs"},
    {"restante.mailbox.inflow", "restante.mailbox.holders", "restante.mailbox.office", "restante.mailbox.outflow"},
    {"restante.mailbox.first_bytes"},
    {"restante.mailbox.websocket", "restante.ops.trace"},
    {"restante.mailbox.server", "restante.ops.admin"},
    {"restante.mailbox.serve"},
    {"restante.waku.dice", "restante.waku.accounts"},
    {"restante.waku.link"},
    {"restante.waku.keyfile", "restante.waku.caller", "restante.waku.results", "restante.waku.statefile"},
    {"restante.waku.post", "restante.waku.ask"},
    {"restante.waku.follow"},
    {"restante.waku.address", "restante.waku.history", "restante.waku.probe"},
    {"restante.waku.answers"},
    {"restante.waku.relay"},
    {"restante.waku.node"},
    {"restante.waku.metrics"},
    {"restante.waku.serve"},
    {"restante.pipeline.jvm"},
    {"restante.pipeline.spark"},
    {"restante.pipeline.tables.build", "restante.pipeline.tables.buckets", "restante.pipeline.tables.commonest"},
    {"restante.pipeline.tables.outcomes", "restante.pipeline.tables.hours"},
    {"restante.pipeline.tables.versions", "restante.pipeline.tables.envelopes", "restante.pipeline.tables.timing"},
    {"restante.pipeline.tables"},
    {"restante.pipeline.writing"},
    {"restante.pipeline.staging"},
    {"restante.pipeline.laketable"},
    {"restante.pipeline.lake", "restante.pipeline.vacuum"},
    {"restante.pipeline.views"},
    {"restante.pipeline.steps"},
    {"restante.pipeline.scratch"},
    {"restante.pipeline.ingest"},
    {"restante.pipeline.building"},
    {"restante.cli_waku", "restante.cli_pipeline"},
    {"restante.cli"},
    {"restante.__main__"},
]

PACKAGES = {
    "restante.pipeline",
    "restante.pipeline.tables",
    "restante.pipeline.sources",
    "restante.mailbox",
    "restante.mailbox.store",
    "restante.mailbox.takeover",
    "restante.ops",
    "restante.store",
    "restante.waku",
    "restante.waku.archive",
    "restante.waku.files",
}

PURE = {
    "restante.mailbox." + name
    for name in (
        *("messages", "model", "state", "usage", "session", "rules", "desk", "sweep"),
        *("limits", "permission", "addresses", "books", "door", "turns", "holders"),
        *("takeover.reference", "takeover.report", "takeover.translation"),
    )
}

PURE |= {"restante.pipeline." + name for name in ("fields", "envelopes", "timing", "sources.events")}
PURE |= {"restante.address", "restante.pipeline.cleaning", "restante.pipeline.sources.marks"}

PURE |= {
    "restante.waku." + name
    for name in (
        *("rlp", "keccak", "bloom", "envelope", "keys", "ecies", "limits", "archive.ids", "archive.query"),
        *("handshake", "frames", "rlpx", "packed", "hello", "devp2p", "enode"),
        *("interest", "wire", "peer", "pool", "mailserver", "acceptance"),
        *("mining", "sealing", "request", "completion"),
        *("gaps", "inbox", "errand", "walk", "requester", "times"),
    )
}

IMPURE = {
    "asyncio",
    "sqlite3",
    "socket",
    "time",
    "random",
    "secrets",
    "os",
    "picows",
    "uvloop",
    "aiohttp",
    "structlog",
}
"""What no core may know: I/O, clocks and dice."""


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ["restante", *path.relative_to(ROOT).with_suffix("").parts]
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


@functools.cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def layer(module: str) -> int:
    return next((number for number, names in enumerate(LAYERS) if module in names), -1)


def test_every_module_has_its_layer() -> None:
    assert {name for names in LAYERS for name in names} == set(modules())


def test_arrows_point_down_only() -> None:
    for module, path in modules().items():
        for imported in imports(path) & set(modules()):
            if imported in {module, *PACKAGES}:
                continue  # a package on the way to one of its modules
            down = layer(imported) < layer(module) or imported.rpartition(".")[0] == module
            assert down, f"{module} imports {imported}, which is not below it"


def test_cores_know_no_clock_no_dice_and_no_sockets() -> None:
    for module in PURE:
        named = {name.partition(".")[0] for name in imports(modules()[module])}
        assert not named & IMPURE, f"{module} imports {named & IMPURE}"
