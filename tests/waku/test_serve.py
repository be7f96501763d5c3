"""`restante waku serve`: how it begins, how it ends, and what it says."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import socket
import sqlite3
import stat
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest
import structlog

from restante.waku import key_file
from restante.waku.archive.schema import FILE
from restante.waku.archive.sqlite import DATABASE_PAGE_BYTES, open_archive
from restante.waku.devp2p.enode import Enode
from restante.waku.devp2p.hello import Reason
from restante.waku.envelope.keys import Key
from restante.waku.node import main as waku_serve
from restante.waku.node.housekeeping import Housekeeping
from restante.waku.node.main import MIN_DESCRIPTORS, PRUNE_GRACE_SECONDS, _log_first_prune, _prune, _static
from restante.waku.protocol import packets as waku_packets
from restante.waku.protocol.acceptance import Policy
from restante.waku.settings import WakuServe
from support.bounds import bounded
from support.ports import held_port
from support.processes import called, run, started
from support.waku.inside import inside
from support.waku.letters import EPOCH, letter
from support.waku.processes import WAKU, altered, archived, node_process
from support.waku.raw_peer import GoneError


async def test_a_node_prints_its_enode_serves_and_drains_and_its_log_names_nobody(tmp_path: Path) -> None:
    data = tmp_path / "data"
    letters = [letter(number, now=int(time.time())) for number in range(5)]
    with held_port() as admin:
        async with node_process(data, "--admin", f"127.0.0.1:{admin}") as node:
            assert node.url.startswith(f"enode://{node.enode.public.hex()}@127.0.0.1:")
            key = data / "node.key"
            assert stat.S_IMODE(key.stat().st_mode) == 0o600
            assert Key(bytes.fromhex(key.read_text())).public == node.enode.public
            assert stat.S_IMODE(data.stat().st_mode) == 0o700
            assert "ok" in await get(admin, "/readyz"), "the port is open when the enode is printed"
            poster, reader = await node.greet(), await node.greet()
            assert re.search(r"^waku_peers 2", await get(admin, "/metrics"), re.MULTILINE)
            with closing(sqlite3.connect(data / FILE, isolation_level=None)) as busy:
                busy.execute("BEGIN IMMEDIATE")
                packets = [poster.offer([envelope]) for envelope in letters]
                await poster.fence()  # all of it was read
                node.serving.send(signal.SIGTERM)
                await node.serving.logged("draining")
                assert [code for code, _ in poster.inbox if code != waku_packets.MESSAGES] == []
                busy.execute("ROLLBACK")
            for packet in packets:
                assert not (await poster.confirmed(packet)).refusals
            assert await reader.relayed(len(letters)) == letters
            for peer in (poster, reader):
                assert await peer.ended() is Reason.CLIENT_QUITTING
            assert await node.serving.ended() == 0
            assert node.serving.process.stdout is not None
            assert await node.serving.process.stdout.read() == b"", "nothing else is on standard output"
    events = [json.loads(line) for line in node.serving.log]
    assert [event["event"] for event in events] == ["the dashboard is open", "listening", "draining", "stopped"]
    said = "".join(line for line in node.serving.log if "the dashboard is open" not in line)
    for secret in ("127.0.0.1", letters[0].hash.hex(), letters[0].topic.hex(), poster.key.public.hex()):
        assert secret not in said
    assert sorted(await archived(data)) == sorted(envelope.hash for envelope in letters)


async def get(port: int, path: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return await response.text()


def test_what_the_node_cannot_start_with_is_found_before_the_data_directory_is_made(tmp_path: Path) -> None:
    own = Enode(key_file.load_or_make(tmp_path / "own").public, "127.0.0.1", 1)
    (tmp_path / "key").write_text("no digits")
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "shown").write_text("ab" * 32)
    (tmp_path / "shown").chmod(0o644)
    host = "192.0.2.1:30303"  # for documentation: no machine has it
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        here = f"127.0.0.1:{taken.getsockname()[1]}"
        wrong: tuple[tuple[str, object, str], ...] = (
            ("--key", tmp_path / "key", r"contains no private key.* \(--key\)"),
            ("--key", tmp_path / "key" / "below", r"cannot read the key file.* \(--key\)"),
            (
                "--key",
                tmp_path / "shown",
                f"other users may read the private key in .*: run chmod 600 {tmp_path}/shown",
            ),
            ("--password-file", tmp_path / "none", r".*No such file or directory \(--password-file\)"),
            ("--listen", host, rf"cannot listen on {host}: .* \(--listen\)"),
            ("--listen", here, rf"cannot listen on {here}: Address already in use \(--listen\)"),
            ("--admin", host, rf"cannot listen on {host}: .* \(--admin\)"),
            ("--topics", "all", r"--topics: 'all' is not a topic.*"),
            ("--peer", own, rf"--peer {re.escape(str(own))}: this is the key of the node itself: leave it out"),
        )
        for flag, value, words in wrong:
            options = {"--listen": "127.0.0.1:0", "--admin": "off", "--key": tmp_path / "own"} | {flag: value}
            arguments = [str(word) for pair in options.items() for word in pair]
            ended = called("waku", "serve", "--data", tmp_path / "data", *arguments)
            assert (ended.returncode, ended.stdout) == (2, "")
            assert re.fullmatch(rf"restante: .*{words}\n", ended.stderr), ended.stderr
            assert not (tmp_path / "data").exists(), flag


def test_a_port_in_use_is_found_before_slow_imports(tmp_path: Path) -> None:
    program = "import sys; from restante.cli.main import main\ntry: main()\nfinally: print(*sys.modules)"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        here = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ("waku", "serve", "--data", tmp_path / "data", "--admin", here, "--listen", "127.0.0.1:0")
        ended = run(sys.executable, "-c", program, *words)
    assert ended.returncode == 2
    assert ended.stderr == f"restante: cannot listen on {here}: Address already in use (--admin)\n"
    assert not {"uvloop", "aiohttp", "sqlite3", "structlog"} & set(ended.stdout.split())


async def test_it_starts_with_as_many_descriptors_as_the_error_names(tmp_path: Path) -> None:
    def program(limit: int) -> tuple[str, ...]:
        return ("prlimit", f"--nofile={limit}:{limit}", *WAKU)

    async with started(tmp_path / "data", program(MIN_DESCRIPTORS - 1)) as serving:
        assert await serving.ended() == 2
        assert serving.log == [
            (
                f"restante: the server may open {MIN_DESCRIPTORS - 1} file descriptors and needs {MIN_DESCRIPTORS}:"
                " raise the limit (ulimit -Hn)"
            )
        ]
    assert not (tmp_path / "data").exists()
    async with node_process(tmp_path / "data", "--admin", "127.0.0.1:0", program=program(MIN_DESCRIPTORS)) as node:
        peers = [await node.greet() for _ in range(20)]
        for peer in peers:
            await peer.fence()
        node.serving.send(signal.SIGINT)
        assert await node.serving.ended() == 0


def test_a_peer_that_is_named_twice_is_dialled_once() -> None:
    here, there = (Enode(Key(bytes([1]) * 32).public, "127.0.0.1", port) for port in (1, 2))
    settings = WakuServe(peer=(str(here), str(there), f"{here}?discport=0"))
    assert [each.port for each in _static(settings, Key(bytes([2]) * 32))] == [1, 2]


HOUSEKEEPING = Housekeeping(retention=100, retention_bytes=len(letter(1).raw))


async def test_the_first_prune_is_announced_at_once_and_done_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with inside(tmp_path, housekeeping=HOUSEKEEPING) as here:
        old = [letter(number, age=200) for number in range(2)]
        await here.archive.save([*old, letter(2)], EPOCH)
        with structlog.testing.capture_logs() as logs:
            await _log_first_prune(here.node)
            pruning = asyncio.create_task(_prune(here.node))
            await asyncio.sleep(0)
            here.node.archiving.short_of_room.set()
            await here.archive.older(0)
            assert not pruning.done()
            pruning.cancel()
        assert [(each.get("envelopes"), each.get("bytes"), each["in_seconds"]) for each in logs] == [
            (2, None, PRUNE_GRACE_SECONDS),
            (None, 2 * len(old[0].raw), PRUNE_GRACE_SECONDS),
        ]
        assert len(await here.archive.hashes()) == 3, "nothing goes before its time"
        monkeypatch.setattr(waku_serve, "PRUNE_GRACE_SECONDS", 0)
        with structlog.testing.capture_logs() as logs:
            pruning = asyncio.create_task(_prune(here.node))
            await here.until("the log", lambda: bool(logs))
            pruning.cancel()
        assert (logs[-1]["event"], logs[-1]["envelopes"]) == ("pruned", 2)
        assert await here.archive.hashes() == [letter(2).hash]


async def test_a_full_disk_is_pruned_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waku_serve, "PRUNE_GRACE_SECONDS", 0)
    async with inside(tmp_path, housekeeping=HOUSEKEEPING, policy=Policy(min_pow=0.0)) as here:
        with structlog.testing.capture_logs() as logs:
            pruning = asyncio.create_task(_prune(here.node))
            here.node.archiving.short_of_room.set()
            await here.until("the first look", lambda: not here.node.archiving.short_of_room.is_set())
            await here.archive.counts()  # it is over: there was nothing
            poster = await here.greet()
            await poster.post(letter(1), letter(2))
            here.archive.full = True
            assert (await poster.post(letter(3))).refusals
            await here.until("room", lambda: any(each["event"] == "pruned" for each in logs))
            pruning.cancel()
        assert len(await here.archive.hashes()) == 1


def the_end_of_its_tables(_database: sqlite3.Connection, path: Path) -> range:
    return range(2, path.stat().st_size // DATABASE_PAGE_BYTES + 1)


def a_leaf_of_its_index(database: sqlite3.Connection, path: Path) -> range:
    """Find a page in the middle of the index of topics, which its root names (sqlite.org/fileformat2.html)."""
    statement = "SELECT rootpage FROM sqlite_master WHERE name = 'envelopes_topic'"
    [root] = database.execute(statement).fetchone()
    page = path.read_bytes()[(root - 1) * DATABASE_PAGE_BYTES : root * DATABASE_PAGE_BYTES]
    count = int.from_bytes(page[3:5])
    assert page[0] == 2, "an inner page of an index"
    assert count > 2
    cell = int.from_bytes(page[12 + count // 2 * 2 :][:2])
    leaf = int.from_bytes(page[cell : cell + 4])
    return range(leaf, leaf + 1)


@pytest.mark.parametrize("damaged", [the_end_of_its_tables, a_leaf_of_its_index])
async def test_a_damaged_archive_is_not_served(
    tmp_path: Path, damaged: Callable[[sqlite3.Connection, Path], range]
) -> None:
    archive, path = open_archive(tmp_path), tmp_path / FILE
    await archive.save([letter(number) for number in range(5000)], EPOCH)
    await archive.close()
    with closing(sqlite3.connect(path)) as database:
        pages = damaged(database, path)
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * DATABASE_PAGE_BYTES)
            file.write(b"\xa5" * DATABASE_PAGE_BYTES)
    options = ("--listen", "127.0.0.1:0", "--admin", "off")
    ended = await asyncio.to_thread(run, *WAKU, "serve", "--data", tmp_path, *options)
    assert (ended.returncode, ended.stdout) == (1, ""), "no enode"
    assert re.fullmatch(
        r"restante: the archive is damaged \(.*malformed\): restore a backup;"
        r" run `restante waku check` for details\n",
        ended.stderr,
    )


async def test_a_second_sigterm_ends_the_node_even_if_the_disk_hangs(tmp_path: Path) -> None:
    async with node_process(tmp_path / "data", program=altered("hangs-at-commit")) as node:
        poster, reader = await node.greet(), await node.greet()
        poster.offer([letter(now=int(time.time()))])
        await reader.relayed(1)
        node.serving.send(signal.SIGTERM)
        await node.serving.logged("draining")
        node.serving.send(signal.SIGTERM)
        assert await node.serving.ended() == 1
        with pytest.raises(GoneError):
            await poster.hear()  # no confirmation


async def test_a_failing_disk_ends_the_node_with_one_sentence_and_confirms_nobody(tmp_path: Path) -> None:
    data = tmp_path / "data"
    kept, lost = letter(1, now=int(time.time())), letter(2, now=int(time.time()), size=100_000, ttl=1000)
    async with node_process(data, "--min-pow", "0") as node:
        poster = await node.greet()
        await poster.post(kept)
        # A limit on the size of files stands for the disk: the kernel refuses to let the log grow (setrlimit(2)).
        size = (data / f"{FILE}-wal").stat().st_size
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        poster.offer([lost])
        assert await node.serving.ended() == 1
        assert node.serving.log[-1].startswith("restante: ")
        assert not [line for line in node.serving.log if "Traceback" in line]
        with pytest.raises(GoneError):
            await poster.hear()
    assert await archived(data) == [kept.hash]


@pytest.mark.thorough
async def test_nodes_in_processes_find_each_other_again_after_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "b"
    async with node_process(data) as b:
        url = b.url
        async with node_process(tmp_path / "a", "--peer", url) as a:
            await a.serving.logged("a static peer is connected")
            poster, reader = await a.greet(), await b.greet()
            await poster.post(letter(1, now=int(time.time())))
            await reader.relayed(1)
            b.serving.process.kill()
            await b.serving.ended()
            lost = await a.serving.logged("a static peer is not connected")
            assert lost["peer"] == b.enode.address
            connected = len(a.serving.log)
            async with node_process(data, "--listen", b.enode.address) as back:
                async with bounded("the static peer"):
                    while not any("is connected" in line for line in a.serving.log[connected:]):
                        await a.serving.news()
                assert back.url == url
                reader = await back.greet()
                assert len(await reader.relayed(1)) == 1  # it lives yet, and a has brought it
                await poster.post(letter(2, now=int(time.time())))
                await reader.relayed(1)
                await back.serving.stop()
            await a.serving.stop()
    assert sorted(await archived(data)) == sorted(await archived(tmp_path / "a"))
