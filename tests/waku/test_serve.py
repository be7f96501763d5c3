"""`restante waku serve`: how it begins and ends, what it says, its settings, and its admin port."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import resource
import signal
import stat
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import structlog
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import async_playwright, expect

from restante.cli.times import read_time
from restante.common import admin_http
from restante.common.errors import Misuse
from restante.common.settings import resolve_settings
from restante.waku import key_file
from restante.waku import settings as waku_settings
from restante.waku.archive.schema import ARCHIVE_FILE
from restante.waku.archive.sqlite import DATABASE_PAGE_BYTES, open_archive
from restante.waku.client.arguments import request_options
from restante.waku.devp2p.enode import Enode
from restante.waku.devp2p.hello import Reason
from restante.waku.envelope import rlp
from restante.waku.envelope.keys import Key, node_id
from restante.waku.envelope.payload import SymmetricKey
from restante.waku.limits import Limits
from restante.waku.node import main as waku_serve
from restante.waku.node import status_pages
from restante.waku.node.admission import ConnectionCount
from restante.waku.node.history_requests import REFUSALS
from restante.waku.node.mailserver import ARCHIVE_RETRY_DELAY, ArchiveTerms
from restante.waku.node.main import MIN_DESCRIPTORS, PRUNE_GRACE_SECONDS, history_terms, password_key
from restante.waku.passwords import PASSWORD_VARIABLE
from restante.waku.protocol import packets as waku_packets
from restante.waku.protocol.acceptance import OLD, Policy
from restante.waku.protocol.request import Demands
from restante.waku.settings import WakuServe
from support.admin_port import Look, documented, looking, other_fields, sentences
from support.bounds import BOUND, bounded
from support.ports import held_port
from support.processes import called, run, started
from support.sqlite import LOCK, beside, select
from support.timing.browser import RULES, launch_options
from support.waku.inside import Inside, inside
from support.waku.letters import EPOCH, TOPIC, letter
from support.waku.processes import WAKU, archived, node_process
from support.waku.raw_peer import GoneError, ask, fetch_page, plain


async def test_a_node_prints_its_enode_serves_and_drains_and_its_log_names_nobody(tmp_path: Path) -> None:
    data = tmp_path / "data"
    letters = [letter(number, now=int(time.time())) for number in range(5)]
    with held_port() as admin:
        async with node_process(data, "--admin", f"127.0.0.1:{admin}") as node, looking(admin) as look:
            assert node.url.startswith(f"enode://{node.enode.public.hex()}@127.0.0.1:")
            key = data / "node.key"
            assert [stat.S_IMODE(path.stat().st_mode) for path in (data, key)] == [0o700, 0o600]
            assert Key(bytes.fromhex(key.read_text())).public == node.enode.public
            poster, reader, stranger = await node.greet(), await node.greet(), await node.enter()
            assert (await look.counts())["waku_peers"] == 2
            with beside(data / ARCHIVE_FILE, LOCK):
                packets = [poster.offer([envelope]) for envelope in letters]
                await poster.fence()  # all of it was read
                node.serving.send(signal.SIGTERM)
                await node.serving.logged("draining")
                async with bounded("the end of listening"):
                    with suppress(ConnectionRefusedError):
                        while True:
                            (await asyncio.open_connection("127.0.0.1", node.enode.port))[1].close()
                            await asyncio.sleep(0.01)
                assert [code for code, _ in poster.inbox if code != waku_packets.MESSAGES] == []
            for packet in packets:
                assert not (await poster.confirmed(packet)).refusals
            assert await reader.relayed(len(letters)) == letters
            for peer in (poster, reader, stranger):
                assert await peer.ended() is Reason.CLIENT_QUITTING
            assert await node.serving.ended() == 0
            assert node.serving.process.stdout is not None
            assert await node.serving.process.stdout.read() == b"", "nothing else is on standard output"
    events = [json.loads(line)["event"] for line in node.serving.log]
    assert events == ["the dashboard is open", "listening", "draining", "stopped"]
    log = "".join(node.serving.log[1:])
    for secret in ("127.0.0.1", letters[0].hash.hex(), letters[0].topic.hex(), poster.key.public.hex()):
        assert secret not in log
    assert sorted(await archived(data)) == sorted(envelope.hash for envelope in letters)


def test_what_the_node_cannot_start_with_is_found_before_the_data_directory_is_made(tmp_path: Path) -> None:
    own = Enode(key_file.load_or_make(tmp_path / "own").public, "127.0.0.1", 1)
    (tmp_path / "key").write_text("no digits")
    (tmp_path / "key").chmod(0o600)
    wrong: tuple[tuple[str, object, str], ...] = (
        ("--key", tmp_path / "key", r"contains no private key.* \(--key\)"),
        ("--password-file", tmp_path / "none", r".*No such file or directory \(--password-file\)"),
        ("--peer", own, rf"--peer {re.escape(str(own))}: this is the key of the node itself: leave it out"),
    )
    for flag, value, text in wrong:
        options = {"--listen": "127.0.0.1:0", "--admin": "off", "--key": tmp_path / "own"} | {flag: value}
        arguments = [str(word) for pair in options.items() for word in pair]
        ended = called("waku", "serve", "--data", tmp_path / "data", *arguments)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert re.fullmatch(rf"restante: .*{text}\n", ended.stderr), ended.stderr
        assert not (tmp_path / "data").exists(), flag


async def test_it_starts_with_as_many_descriptors_as_the_error_names_and_accepts_as_many_peers_as_it_logs(
    tmp_path: Path,
) -> None:
    def program(limit: int) -> tuple[str, ...]:
        return ("prlimit", f"--nofile={limit}:{limit}", *WAKU)

    few, data = MIN_DESCRIPTORS - 1, tmp_path / "data"
    async with started(data, program(few)) as serving:
        assert await serving.ended() == 2
        reason = f"the server may open {few} file descriptors and needs {few + 1}: raise the limit (ulimit -Hn)"
        assert serving.log == [f"restante: {reason}"]
    assert not data.exists()
    async with node_process(data, "--admin", "127.0.0.1:0", program=program(MIN_DESCRIPTORS)) as node:
        for _ in range(json.loads(node.serving.log[0])["peers"]):
            await node.greet()
        assert await (await node.enter()).ended() is Reason.TOO_MANY_PEERS
        node.serving.send(signal.SIGINT)
        assert await node.serving.ended() == 0


def test_a_peer_that_is_named_twice_is_dialled_once() -> None:
    here, there = (Enode(Key(bytes([1]) * 32).public, "127.0.0.1", port) for port in (1, 2))
    settings = WakuServe(peer=(str(here), str(there), f"{here}?discport=0"))
    # A second dial of the same peer would not show: it has a connection already.
    assert [peer.port for peer in waku_serve.static_peers(settings, Key(bytes([2]) * 32))] == [1, 2]


async def test_the_first_prune_is_announced_and_a_full_disk_pruned(tmp_path: Path) -> None:
    old = [letter(number, age=200) for number in range(2)]
    terms = ArchiveTerms(retention=100, retention_bytes=len(old[0].raw))
    async with inside(tmp_path, terms=terms, policy=Policy(min_pow=0.0)) as here:
        await here.archive.save([*old, letter(2)], EPOCH)
        with structlog.testing.capture_logs() as logs:
            await waku_serve.log_first_prune(here.node)
        here.clock.on.clear()
        pruning = asyncio.create_task(waku_serve.prune_regularly(here.node))
        here.node.archiving.short_of_room.set()
        await here.until("a prune that waits", lambda: here.clock.waiting == 1)
        assert [(line.get("envelopes"), line.get("bytes"), line["in_seconds"]) for line in logs] == [
            (2, None, PRUNE_GRACE_SECONDS),
            (None, 2 * len(old[0].raw), PRUNE_GRACE_SECONDS),
        ]
        assert len(await here.archive.hashes()) == 3, "nothing goes before its time"
        with structlog.testing.capture_logs() as logs:
            here.clock.on.set()
            await here.until("the log", lambda: bool(logs))
            assert (logs.pop()["event"], await here.archive.hashes()) == ("pruned", [letter(2).hash])
            assert here.clock.passed == PRUNE_GRACE_SECONDS
            poster = await here.greet()
            await poster.post(letter(3))
            here.archive.full = True
            assert (await poster.post(letter(4))).refusals
            await here.until("room", lambda: any(line["event"] == "pruned" for line in logs))
            pruning.cancel()
        assert await here.archive.hashes() == [letter(3).hash]


@pytest.mark.parametrize("damaged", ["pageno > 1", "name = 'envelopes_topic' AND pagetype = 'leaf' LIMIT 1 OFFSET 2"])
async def test_a_damaged_archive_is_not_served(tmp_path: Path, damaged: str) -> None:
    archive, path = open_archive(tmp_path), tmp_path / ARCHIVE_FILE
    await archive.save([letter(number) for number in range(5000)], EPOCH)
    await archive.close()
    pages = select(path, f"SELECT pageno FROM dbstat WHERE {damaged}")
    assert pages
    with path.open("r+b") as file:
        for [page] in pages:
            file.seek((page - 1) * DATABASE_PAGE_BYTES)
            file.write(b"\xa5" * DATABASE_PAGE_BYTES)
    options = ("--listen", "127.0.0.1:0", "--admin", "off")
    ended = await asyncio.to_thread(run, *WAKU, "serve", "--data", tmp_path, *options)
    assert (ended.returncode, ended.stdout) == (1, ""), "no enode"
    assert ended.stderr.startswith("restante: the archive is damaged (")
    assert ended.stderr.endswith("malformed): restore a backup; run `restante waku check` for details\n")


async def test_a_failing_disk_ends_the_node_with_one_sentence_and_confirms_nobody(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the kernel refuses to let the log grow (setrlimit(2))."""
    data, now = tmp_path / "data", int(time.time())
    async with node_process(data, "--min-pow", "0") as node:
        poster = await node.greet()
        await poster.post(letter(1, now=now))
        size = (data / f"{ARCHIVE_FILE}-wal").stat().st_size
        resource.prlimit(node.serving.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        poster.offer([letter(2, now=now, size=100_000, ttl=1000)])
        assert await node.serving.ended() == 1
        assert node.serving.log[-1].startswith("restante: ")
        assert not [line for line in node.serving.log if "Traceback" in line]
        with pytest.raises(GoneError):
            await poster.hear()
    assert await archived(data) == [letter(1, now=now).hash]


@pytest.mark.thorough
async def test_nodes_in_processes_find_each_other_again_after_a_kill(tmp_path: Path) -> None:
    data, now = tmp_path / "b", int(time.time())
    async with node_process(data) as b, node_process(tmp_path / "a", "--peer", b.url) as a:
        await a.serving.logged("a static peer is connected")
        b.serving.kill()
        await b.serving.ended()
        poster = await a.greet()
        await poster.post(letter(1, now=now))
        async with node_process(data, "--listen", b.enode.address) as back:
            assert back.url == b.url
            reader = await back.greet()
            assert len(await reader.relayed(1)) == 1  # it lives yet, and a has brought it
            await poster.post(letter(2, now=now))
            await reader.relayed(1)
            await back.serving.stop()
        await a.serving.stop()
    assert sorted(await archived(data)) == sorted(await archived(tmp_path / "a"))


def resolved(environment: dict[str, str] | None = None, file: Path | None = None, **flags: Any) -> WakuServe:
    return resolve_settings(waku_settings.WAKU, flags, environment or {}, file)[0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"peer": ["enode://nobody"]}, "--peer: not an enode URL"),
        ({"allow": ["enode://nobody"]}, "--allow: not an enode URL"),
        ({"topics": ["xyz"]}, r"--topics: 'xyz' is not a topic, which has 8 hexadecimal digits"),
        ({"listen": ["nowhere"]}, "--listen: 'nowhere' is not HOST:PORT"),
        ({"listen": ["plain:127.0.0.1:0"]}, "leave plain: out, since the node has no TLS"),
        ({"admin": "4011"}, "--admin"),
        ({"admin_host": ["a:1"]}, "--admin-host: 'a:1' is not the name of a host"),
        ({"limit": ["patience=3"]}, r"--limit patience=3: .*address_bytes"),
        ({"limit": ["envelope_bytes=1048577"]}, "--limit envelope_bytes"),
        ({"key": ""}, "--key"),
        ({"file": 'requests = ["all"]'}, r"toml: requests: \['all'\] is not a list of envelope or plain"),
        ({"file": "retention = nan"}, r"restante\.toml: retention: nan is not a number from 0 to 36525"),
        ({"file": "[waku.limits]\npool_bytes = true"}, r"toml: limits\.pool_bytes: true is not a whole number from"),
        ({"environment": {"RESTANTE_WAKU_TOPICS": "01020304, ff"}}, "RESTANTE_WAKU_TOPICS: 'ff' is not a topic"),
        (
            {"environment": {"RESTANTE_WAKU_LIMIT_KNOWN_BYTES": "x"}},
            r"RESTANTE_WAKU_LIMIT_KNOWN_BYTES: 'x' is not a whole number from 1048576 up$",
        ),
    ],
)
def test_an_invalid_setting_is_refused_by_name(arguments: dict[str, Any], text: str, tmp_path: Path) -> None:
    if "file" in arguments:
        (tmp_path / "restante.toml").write_text(f"[waku]\n{arguments['file']}\n")
        arguments = {"file": tmp_path / "restante.toml"}
    with pytest.raises(Misuse, match=text):
        resolved(**arguments)


def test_requests_are_answered_as_the_settings_say(tmp_path: Path) -> None:
    """Its public key opens requests only if everybody may request. Each case by a process would take a second."""
    password, own, friend = tmp_path / "password", Key(bytes([2]) * 32), Key(bytes([1]) * 32)
    password.write_text("swordfish\n")
    usual = resolved()
    terms = history_terms(usual, own, password_key(usual))
    assert (terms.descending, terms.allow) == (False, None)
    everybodys, ours = terms.demands.keys
    assert isinstance(everybodys, SymmetricKey)
    assert (everybodys.secret, ours) == (SymmetricKey.from_password("status-offline-inbox").secret, own)
    assert terms.demands == Demands(keys=(everybodys, own), min_pow=2e-6)
    settings = resolved(
        {"RESTANTE_WAKU_REQUESTS": "envelope"},
        password_file=str(password),
        require_signature=True,
        allow=[f"enode://{friend.public.hex()}@127.0.0.1:30303"],
        order="desc",
        min_pow=0.5,
    )
    terms = history_terms(settings, own, password_key(settings))
    assert (terms.descending, terms.allow) == (True, frozenset((node_id(friend.public),)))
    [only] = terms.demands.keys
    assert isinstance(only, SymmetricKey)
    assert only.secret == SymmetricKey.from_password("swordfish").secret
    forms = frozenset(["envelope"])
    assert terms.demands == Demands(keys=(only,), forms=forms, min_pow=0.5, require_signature=True)  # type: ignore[arg-type]


def test_an_empty_password_is_refused_and_not_taken_for_none(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("\n")
    with_file, without = resolved(password_file=str(file)), resolved()
    with patch.dict(os.environ, {PASSWORD_VARIABLE: ""}):
        for name, read in (
            ("--password-file", lambda: password_key(with_file)),
            ("--password-file", lambda: request_options("envelope", file, None, {})),
            (PASSWORD_VARIABLE, lambda: password_key(without)),
            (PASSWORD_VARIABLE, lambda: request_options("envelope", None, None, os.environ)),
        ):
            with pytest.raises(Misuse, match=f"^{name}: it is empty"):
                read()


NOW = 1_795_223_193


def test_every_form_of_a_time_is_read_and_any_other_text_is_misuse() -> None:
    for text, expected in (
        ("now", NOW),
        ("0", 0),
        ("-1s", NOW - 1),
        ("-90m", NOW - 5400),
        ("-24h", NOW - 86400),
        ("-7d", NOW - 7 * 86400),
        ("2023-11-14T22:13:20", 1_700_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000),
        ("2023-11-14", 1_699_920_000),
    ):
        assert read_time(text, NOW, "--from") == expected
    for text in ("", "soon", "24h", "1.5", "-99999999999s", "4294967296", "1969-12-31", "2200-01-01", "٣"):
        with pytest.raises(Misuse, match=r"--to: '.*' is not a time"):
            read_time(text, NOW, "--to")


@asynccontextmanager
async def looked_at(here: Inside, data: Path) -> AsyncIterator[Look]:
    async with (
        admin_http.serving_admin("127.0.0.1", 0, status_pages.admin_pages(here.node, data)) as (listening, *_),
        looking(listening.getsockname()[1]) as look,
    ):
        yield look


async def test_counts_agree_with_what_was_done(tmp_path: Path) -> None:
    """A refusal is called what dashboards for status-go call it (waku/waku.go, addAndBridge)."""
    bad = {
        "in_future": [letter(age=-100), letter(age=-101)],
        "very_old": [letter(age=1000)],
        "expired": [letter(age=55)],
        "long_ttl": [letter(ttl=1001)],
        "oversized": [letter(size=6000)],
        "low_pow": [letter(ttl=999, size=4000, topic=TOPIC)],
    }
    good = [letter(number, age=number) for number in range(5)]
    size = sum(len(envelope.raw) for envelope in good)
    policy = Policy(min_pow=1e-6, max_ttl=1000, max_size=5000)
    async with inside(tmp_path, policy=policy) as here, looked_at(here, tmp_path) as look:
        poster, reader = await here.greet(), await here.greet()
        before = await look.counts()
        assert before["waku_disk_free_bytes"] > 1_000_000
        assert {value for name, value in before.items() if name.startswith("mailserver")} == {0.0}
        await poster.post(*good)
        await poster.post(*good[:2])
        await poster.post(*itertools.chain(*bad.values()))
        assert await reader.relayed(5)
        for _ in range(2):
            await fetch_page(reader, lower=EPOCH - 2)
        await ask(reader, plain(lower=EPOCH + 1))
        reader.say(waku_packets.REQUEST, rlp.encode([1] * 6))
        await here.settled(poster, reader)
        here.node.counts.update({count: number for number, count in enumerate(ConnectionCount, 1)})
        counts = await look.counts()
        assert {value for name, value in counts.items() if "rejected" in name} == {0.0}
        expected = {f"waku_envelopes_cache_failures_total {name}": len(some) for name, some in bad.items()}
        expected |= {
            "waku_envelopes_received_total": 5 + 2 + 7,
            "waku_envelopes_validated_total": 5,
            "waku_envelopes_relayed_total": 5,
            "waku_envelopes_known": 5,
            "waku_envelopes_size_bytes_count": 5,
            "waku_envelopes_cached_total hit": 2,
            "waku_envelopes_cached_total miss": 5,
            "waku_peers": 2,
            "waku_connections": 2,
            "waku_connections_refused_total address": 1 + 2,
            "waku_connections_refused_total handshake": 3,
            "waku_connections_refused_total full": 4,
            "waku_connections_refused_total gave_way": 5,
            "mailserver_archived_envelopes_total sqlite": 5,
            "mailserver_archived_bytes": size,
            "mailserver_archived_envelopes_failures_total sqlite": 0,
            "mailserver_archived_envelope_size_bytes_count sqlite": 5,
            "mailserver_archived_envelope_size_bytes_sum sqlite": size,
            "mailserver_requests_total": 4,
            "mailserver_requests_refused_total": 2,
            "mailserver_requests_batched_total": 2,
            "mailserver_requests_bundle_process_duration_seconds_count": 2,
            "mailserver_delivery_failures_total validation": 2,
            "mailserver_delivery_failures_total peer_req_limit": 0,
            "mailserver_delivery_failures_total iterator": 0,
            "mailserver_delivery_failures_total process": 0,
            "mailserver_delivery_duration_seconds_count": 2,
            "mailserver_delivery_duration_seconds_bucket +Inf": 2,
            "mailserver_delivery_attempts_total": 3,  # all but the one that could not be read
            "mailserver_envelope_queries_total topics unknown": 2,
            "mailserver_envelopes_total": 2 * 3,
            "mailserver_sent_envelope_batch_size_bytes_count": 2,
            "mailserver_sent_envelope_batch_size_bytes_bucket 1024": 2,
        }
        assert {name: counts[name] for name in expected} == expected
        reader.cut()
        await here.until("the loss", lambda: len(here.node.connections) == 1)
        await poster.post(letter(9))
        later = await look.counts()
        relayed = {"waku_peers": 1, "waku_envelopes_relayed_total": 5}
        assert {name: later[name] for name in relayed} == relayed, "the peer that left wants nothing"


async def test_packets_that_cannot_be_read_are_rejected_and_nothing_else_is(tmp_path: Path) -> None:
    """With the reasons of status-go (waku/v1/peer.go)."""
    large = waku_packets.write_envelopes([*(letter(number).raw for number in range(5000)), b"\xc0"])
    sent = (
        (waku_packets.MESSAGES, large),
        (waku_packets.MESSAGES, b"\x80"),
        (waku_packets.MESSAGE_RESPONSE, b"\x80"),
        (waku_packets.BATCH_ACK, b"\x80"),
        (waku_packets.STATUS_UPDATE, b"\x80"),
        (waku_packets.REQUEST, b"\x80"),
        (waku_packets.MESSAGES, waku_packets.write_envelopes([letter(1, age=1000).raw])),
        (99, b"\x80"),
    )
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        peer = await here.greet()
        for code, body in sent:
            peer.say(code, body)
            await peer.fence()
            await here.until("the large packet", here.node.rejected.total)
        assert here.node.mailserver.refusals == {OLD: 1}, "a large packet with one that is no envelope"
        counts = await look.counts()
        assert counts["waku_envelopes_rejected_total invalid_data"] == 4
        assert counts["waku_envelopes_rejected_total invalid_settings_changed"] == 1


async def test_the_node_is_alive_and_not_ready_while_the_disk_is_full_or_it_drains(tmp_path: Path) -> None:
    ready, full = (200, "ok\n"), (503, "the disk is full\n")
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        poster = await here.greet()
        assert await look.get("/readyz") == ready
        assert (await look.counts())["waku_ready"] == 1
        here.archive.full = True
        await poster.post(letter(1))
        assert (await look.get("/readyz"), await look.get("/healthz")) == (full, ready)
        counts = await look.counts()
        assert (counts["mailserver_archived_envelopes_failures_total sqlite"], counts["waku_ready"]) == (1, 0)
        here.clock.now += ARCHIVE_RETRY_DELAY
        assert await look.get("/readyz") == ready, "otherwise nobody sends the envelope that shows it"
        await poster.post(letter(1))
        assert await look.get("/readyz") == full
        here.archive.full = False
        here.clock.now += ARCHIVE_RETRY_DELAY
        await poster.post(letter(1))
        assert await look.get("/readyz") == ready
        here.archive.idle.clear()
        packet = poster.offer([letter(2)])
        await poster.fence()
        draining = asyncio.create_task(here.node.drain(here.running))
        await here.until("the drain", lambda: bool(here.node.ready()))
        assert (await look.get("/readyz"), await look.get("/healthz")) == ((503, "draining\n"), ready)
        here.archive.idle.set()
        assert not (await poster.confirmed(packet)).refusals
        await poster.ended()
        await draining


async def test_pages_agree_with_what_was_done_and_have_no_address(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        poster, reader = await here.greet(), await here.greet()
        await poster.post(letter(1), letter(2), letter(age=1000))
        assert await reader.relayed(2)
        await fetch_page(reader)
        pages = {path: await look.get(path) for path in ("/varz", "/connz", "/limitz")}
        assert {status for status, _ in pages.values()} == {200}
        assert "127.0.0.1" not in "".join(text for _, text in pages.values())
        varz, connections, limits = (json.loads(text) for _, text in pages.values())
        assert (varz["archive"]["envelopes"], varz["envelopes"]["new"]) == (2, 2)
        assert varz["envelopes"]["refused"]["very_old"] == 1
        assert (varz["requests"]["received"], varz["requests"]["answered"]) == (1, 1)
        assert connections["total"] == 2
        assert all(peer["identified"] and not peer["dialled"] for peer in connections["connections"])
        assert set(Limits.__struct_fields__) < set(limits["limits"])
        assert {*other_fields(varz, status_pages.METRICS)} == {*documented("all servers", "the node"), "schema"}
        assert set(connections["connections"][0]) == sentences("Fields of a connection of the node: ")
        assert limits["limits"]["max_peers"]["used"] == 2


async def test_the_dashboard_has_refusals_of_the_last_hour_beside_all(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        now = Counter(seconds=0)
        pages = status_pages.StatusPages(here.node, tmp_path, clock=lambda: now["seconds"])
        poster = await here.greet()
        await poster.post(letter(age=1000))
        for _ in range(61):
            now["seconds"] += 60
            await pages.sample()
        await poster.post(letter(age=-100))
        here.node.history_requests.refusals[REFUSALS[0]] += 1
        details, once = await pages.details(), {"last_hour": 1, "since_start": 1}
        assert details["refused_envelopes"] == [{"reason": "in_future", **once}]
        assert details["refused_requests"] == [{"reason": REFUSALS[0], **once}]
        assert (await pages.varz({}))["envelopes"]["refused"]["very_old"] == 1


@pytest.mark.thorough
async def test_the_dashboard_shows_the_node_and_changes_nothing(tmp_path: Path) -> None:
    options = launch_options()
    async with (
        inside(tmp_path) as here,
        looked_at(here, tmp_path) as look,
        async_playwright() as playwright,
        await playwright.chromium.launch(**options) as browser,
    ):
        poster = await here.greet()
        await poster.post(letter(1), letter(2), letter(age=1000))
        page = await browser.new_page(viewport={"width": 1280, "height": 900})
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(look.url)
        await expect(page.locator("#state")).to_have_text("Ready", timeout=BOUND * 1000)
        await expect(page.locator("[data-value='archive.envelopes']")).to_have_text("2")
        await expect(page.locator("[data-rows='refused_envelopes'] tbody tr")).to_have_text(["very_old11"])
        assert await page.locator("form:visible").count() == 0
        results = await Axe().run(page, options=RULES)
        assert results.violations_count == 0, results.generate_report()
        assert complaints == []
        here.archive.full = True
        await (await here.greet()).post(letter(3))  # the first peer has answered no pings meanwhile
        await expect(page.locator("#state")).to_have_text("Not ready: the disk is full", timeout=BOUND * 1000)
