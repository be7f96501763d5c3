"""The guides: from status-go, to history, and to the library; and what `restante.waku` has for other programs."""

from __future__ import annotations

import ast
import asyncio
import doctest
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec
import pytest
import typer.main

from restante import waku
from restante.common.dice import SystemDice
from restante.common.lazy_names import lazy_names
from restante.waku import key_file
from restante.waku.cli import app
from restante.waku.client.arguments import LIMITS
from restante.waku.client.options import DEFAULT_OPTIONS
from restante.waku.client.probe import Outcome
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import node_id
from restante.waku.envelope.payload import SymmetricKey, seal, topic_of
from restante.waku.limits import Limits
from restante.waku.settings import WakuServe
from support.document_shell import shell as document_shell
from support.documents import ROOT, Document
from support.processes import child, loaded_by, run
from support.waku import leveldbs
from support.waku.archives import ROWS, raws_of
from support.waku.envelopes import envelope
from support.waku.fake_node import Honest, listening
from support.waku.processes import serving

GUIDE = Document("docs/waku/from-status-go.md")

EARLY, LATE = ROWS[:30], ROWS[30:]

NODE_KEY: Final = "b71c71a67e1177ad4e901695e1b4b9ee17ae16c6668d313eac2f96dbcda3f291"
NODE_ID: Final = "a448f24c6d18e575453db13171562b71999873db5b286df957af199ec94617f7"
"""Of EIP-778, "Test Vectors": computed by others."""


def shell(commands: str, folder: Path, **variables: str) -> str:
    with_restante = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **variables}
    done = run("sh", "-e", "-c", commands, cwd=folder, variables=with_restante)
    assert done.returncode == 0, f"{commands}\n{done.stderr}"
    return done.stdout


def report(printed: str) -> list[int]:
    return [int(line.split()[-1].replace(",", "")) for line in printed.splitlines()[-4:]]


@pytest.mark.parametrize("block", ["key", "nodekey"])
def test_the_node_keeps_its_name_and_its_key_to_itself(tmp_path: Path, block: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"NetworkId": 1, "NodeKey": NODE_KEY}))
    (tmp_path / "status-go").mkdir()
    (tmp_path / "status-go" / "nodekey").write_text(NODE_KEY)
    shell(GUIDE.blocks[block], tmp_path)
    assert (tmp_path / "waku").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "waku" / "node.key").stat().st_mode & 0o777 == 0o600
    assert node_id(key_file.load_key(tmp_path / "waku" / "node.key").public).hex() == NODE_ID


def test_a_trial_beside_status_go(tmp_path: Path) -> None:
    [trial], [probe] = GUIDE.lines("trial"), GUIDE.lines("probe")
    with document_shell(tmp_path, 30304) as here, here.running(trial) as node:
        assert node.stdout is not None
        enode = next(line.strip() for line in node.stdout if line.startswith("enode://"))
        assert here.run(probe.replace("enode://…", enode)).startswith("all is well")
    assert (tmp_path / "trial.key").exists()
    assert not (tmp_path / "waku" / "node.key").exists()


@pytest.mark.leveldb
def test_a_last_pass_imports_only_what_came_since_the_first(tmp_path: Path) -> None:
    import plyvel

    archive = tmp_path / "status-go" / "waku"
    archive.parent.mkdir()
    leveldbs.of(archive, EARLY)
    with closing(plyvel.DB(str(archive))) as status_go:  # it runs
        assert report(shell(GUIDE.blocks["first pass"], tmp_path)) == [len(EARLY), len(EARLY), 0, 0]
        for row in LATE:
            status_go.put(leveldbs.key(row), row.raw)
    before = {file.name: file.read_bytes() for file in archive.iterdir()}
    last_pass = GUIDE.blocks["last pass"]
    assert report(shell(last_pass, tmp_path)) == [len(ROWS), len(LATE), len(EARLY), 0]
    assert sorted(raws_of(tmp_path / "waku")) == sorted(row.raw for row in ROWS)
    assert {file.name: file.read_bytes() for file in archive.iterdir()} == before
    assert report(shell(last_pass, tmp_path)) == [len(ROWS), 0, len(ROWS), 0]


POSTGRES: Final = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
"""Where Debian has the server's programs: `apt install postgresql`."""

TABLE: Final = """
CREATE TABLE envelopes (id BYTEA NOT NULL UNIQUE, data BYTEA NOT NULL, topic BYTEA NOT NULL, bloom BIT(512) NOT NULL);
CREATE INDEX id_bloom_idx ON envelopes (id DESC, bloom);
CREATE INDEX id_topic_idx ON envelopes (id DESC, topic);
CREATE INDEX topic_idx ON envelopes (topic);
"""
"""As status-go makes it (mailserver/migrations, @1b53d04cc)."""


def rows(envelopes: list[Envelope]) -> str:
    """Write statements that store these as status-go does (mailserver/mailserver_db_postgres.go, SaveEnvelope)."""
    written = []
    for sent in envelopes:
        bits = "".join(f"{byte:08b}" for byte in bloom.encode(bloom.required_bits(sent.topic)))
        key, topic = leveldbs.key(sent).hex(), sent.topic.hex()
        written.append(f"INSERT INTO envelopes VALUES ('\\x{key}', '\\x{sent.raw.hex()}', '\\x{topic}', B'{bits}');")
    return "\n".join(written)


@asynccontextmanager
async def postgresql() -> AsyncIterator[str]:
    assert POSTGRES is not None
    with tempfile.TemporaryDirectory(prefix="pg.") as name:  # the path of a socket is short
        become: tuple[str, ...] = ()
        if os.geteuid() == 0:  # which PostgreSQL refuses to be
            shutil.chown(name, "nobody", "nogroup")
            become = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
        initdb = (*become, str(POSTGRES / "initdb"), "-D", f"{name}/db", "-U", "status", "--auth=trust", "-N")
        made = await asyncio.to_thread(run, *initdb, cwd=Path(name))
        assert made.returncode == 0, made.stderr
        options = ("-D", f"{name}/db", "-k", name, "-c", "listen_addresses=", "-F")
        async with child(*become, str(POSTGRES / "postgres"), *options) as server:
            await server.says("ready to accept connections")
            yield f"postgresql://status@/postgres?host={name}"
            server.send(signal.SIGINT)
            await server.ended()


@pytest.mark.thorough
@pytest.mark.skipif(
    POSTGRES is None or shutil.which("psql") is None, reason="PostgreSQL is missing (Debian: apt install postgresql)"
)
async def test_an_archive_in_postgresql_in_two_passes(tmp_path: Path) -> None:
    large = envelope(3, 999, size=(1 << 20) - 100)
    printed: list[str] = []
    async with postgresql() as uri:
        for statements in (TABLE + rows([*EARLY, large]), rows(LATE)):
            psql = ("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", uri)
            stored = await asyncio.to_thread(run, *psql, stdin=statements)
            assert stored.returncode == 0, stored.stderr
            printed.append(await asyncio.to_thread(shell, GUIDE.blocks["postgresql"], tmp_path, URI=uri))
    first, last = printed
    assert (report(first), report(last)) == ([31, 31, 0, 0], [51, 20, 31, 0])
    assert re.search(r"count.*\n-+\n +51\n", last)
    imported = await asyncio.to_thread(raws_of, tmp_path / "waku")
    assert sorted(imported) == sorted(one.raw for one in [*ROWS, large])


def test_every_flag_and_limit_that_replaces_a_field_of_status_go_exists() -> None:
    ours = " ".join(line.split("|")[2] for line in GUIDE.text.splitlines() if line.startswith("| `"))
    flags = {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", ours)}
    assert flags - {"limit"} < set(WakuServe.__struct_fields__)
    limits = set(re.findall(r"--limit (\w+)=", ours))
    assert len(limits) > 4
    assert limits < set(Limits.__struct_fields__)


HISTORY = Document("docs/waku/history.md")


def mailserver() -> Honest:
    chat, dice, now = SymmetricKey.from_password("status"), SystemDice(), int(time.time())
    data = seal(b"held until called for", to=chat, dice=dice)
    return Honest([make(now - age + 50, 50, topic_of("status"), data) for age in (3600, 2 * 86400)])


async def test_the_commands_of_the_guide(tmp_path: Path) -> None:
    async with listening(mailserver(), password="status-offline-inbox") as (node, enode):
        (tmp_path / "enode.txt").write_text(f"{enode}\n")
        commands = HISTORY.commands("requests", " -o ", "plain", r"status\.json$", "--live", "probe")
        to_file, plain, with_state, live, probe = [await asyncio.to_thread(shell, one, tmp_path) for one in commands]
    assert to_file == "fetched 1 envelope\n"
    assert msgspec.json.decode((tmp_path / "history.jsonl").read_bytes())["text"] == "held until called for"
    assert len(plain.splitlines()) == len(with_state.splitlines()) == 1
    assert (tmp_path / "status.json").exists()
    assert live == ""  # the state knows it
    assert probe.startswith("all is well")
    assert node.wrong == []


def test_the_guide_has_every_flag_limit_and_exit_code() -> None:
    commands = typer.main.get_group(app).commands
    options = [option for name in ("request", "probe") for one in commands[name].params for option in one.opts]
    wanted = [f"`{option}`" for option in options if option.startswith("-")]
    wanted += [f"| `{name}` | {getattr(DEFAULT_OPTIONS, field):,.0f} |" for name, field in LIMITS.items()]
    wanted += [f"| {outcome.value} | " for outcome in Outcome]
    assert [text for text in wanted if text not in HISTORY.text] == []


LIBRARY = Document("docs/waku/library.md")


def test_every_example_of_the_guide_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some of them write files
    with serving(tmp_path / "data") as url:
        variables = {"node": url, "data_directory": tmp_path / "data"}
        results = doctest.testfile(str(ROOT / "docs/waku/library.md"), module_relative=False, globs=variables)
    assert results.failed == 0
    assert results.attempted == len(re.findall(r"^>>> ", LIBRARY.text, re.MULTILINE)) > 30


HEAVY = {"aiohttp", "picows", "uvloop", "typer", "rich", "pyspark", "pyarrow", "plyvel", "prometheus_client"}


def test_importing_the_library_loads_nothing_heavy_nor_does_any_name_of_it() -> None:
    first, last = loaded_by("restante.waku")
    ours = {name for name in first if name.startswith("restante.")}
    assert ours == {"restante.waku", "restante.common", "restante.common.lazy_names"}
    find = lazy_names("restante.waku", {"a_module_of_the_extra": "post"}, extra="waku")
    with pytest.raises(ModuleNotFoundError, match=r"restante\.waku\.post needs the extra 'waku': .* install "):
        find("post")
    assert "asyncio" not in first
    assert not HEAVY & last


def imported() -> dict[str, tuple[str, str]]:
    tree = ast.parse(Path(waku.__file__).read_text())
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_each_name_is_in_the_guide_and_what_type_checkers_read() -> None:
    assert set(waku.__all__) <= set(re.findall(r"\w+", LIBRARY.text))
    assert sorted(imported()) == waku.__all__
    assert set(waku.__all__) <= set(dir(waku))
    for name, (module, there) in imported().items():
        assert getattr(waku, name) is getattr(import_module(module), there), name
