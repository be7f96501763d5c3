"""`restante waku serve`: starts the node, waits for a signal, and stops it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from restante import __version__
from restante.common.admin_access import read_admin_token
from restante.common.data_directory import refuse_unusable_directory
from restante.common.descriptors import OWN_DESCRIPTORS, RESERVED_DESCRIPTORS, raise_descriptors
from restante.common.errors import Misuse, StoreBusy
from restante.common.listening import parse_listen_addresses, shown_address
from restante.common.logs import log
from restante.common.net import EVERYBODY_TRUSTED, parse_networks, trusts_everybody
from restante.common.service_manager import ServiceManager
from restante.common.settings import parse_address
from restante.common.signals import ServerSignals, run_server
from restante.waku import key_file
from restante.waku.archive.sqlite import open_archive
from restante.waku.connection.peer_connection import LOST_TEXT
from restante.waku.devp2p import enode
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.keys import Key, node_id
from restante.waku.envelope.payload import SymmetricKey
from restante.waku.node.admission import PeerLimits
from restante.waku.node.history_requests import HistoryTerms
from restante.waku.node.mailserver import ArchiveTerms, EnvelopeCount, Mailserver
from restante.waku.node.node import Node
from restante.waku.node.pool import Pool
from restante.waku.passwords import OFFLINE_INBOX, read_password
from restante.waku.protocol.acceptance import FUTURE, OLD, REFUSAL_REASONS, Policy, RefusalReason
from restante.waku.protocol.request import Demands
from restante.waku.settings import SECONDS_PER_DAY, WakuServe, read_topic

KEY_FILE: Final = "node.key"
"""The key's file in the data directory if --key names no other."""

MIN_DESCRIPTORS: Final = 64
"""Lowest limit of descriptors with which the node starts. Without peers it holds 24: streams, event loop, archive,
two readers of history, ports. With less than this, few peers could connect."""

CLOCK_WARNING_SHARE: Final = 0.2
"""Share of a minute's envelopes that were refused as from the future or old. Above it, this machine's clock is
probably wrong."""

CLOCK_WARNING_MIN: Final = 100
"""Envelopes a minute below which that share says nothing."""

PRUNE_INTERVAL: Final = 60
"""Seconds between two prunes."""

PRUNE_GRACE_SECONDS: Final = 600
"""Seconds after the start in which nothing is pruned. What will be pruned is logged at once, so an operator who has
imported an old archive by mistake has time to stop the server and to set --retention 0."""


def serve(settings: WakuServe) -> None:
    """Serve until SIGTERM or SIGINT. Raises Misuse and StoreError."""
    run_server(partial(_serve, settings))


def read_files(settings: WakuServe) -> tuple[str | None, SymmetricKey, Key | None, list[Enode]]:
    """Return the token of the admin port, the requesters' password, the key if there is one, and the static peers.

    Raises Misuse if one of the named files, the data directory or a peer cannot be used.
    """
    refuse_unusable_directory(Path(settings.data))
    token = read_admin_token(settings.admin, settings.admin_token_file)
    password = password_key(settings)
    path = Path(settings.key) if settings.key else Path(settings.data) / KEY_FILE
    key = key_file.load_key(path) if path.exists() else None
    return token, password, key, static_peers(settings, key)


async def _serve(settings: WakuServe, signals: ServerSignals) -> None:
    signals.serve(partial(log.info, "SIGHUP changes nothing: settings need a restart"))
    descriptors = raise_descriptors(MIN_DESCRIPTORS)
    # The files of the settings are read first: an error in them creates nothing in the data directory.
    token, password, existing_key, peers = read_files(settings)
    if settings.key and existing_key is None:
        existing_key = key_file.load_or_make(Path(settings.key))
    data = Path(settings.data)
    archive = open_archive(data)
    try:
        key = existing_key or key_file.load_or_make(data / KEY_FILE)
        node = Node(
            key,
            _mailserver(settings),
            archive,
            _peer_limits(settings, descriptors, len(peers) + len(settings.allow)),
            settings.limits,
            history_terms(settings, key, password),
        )
        await log_first_prune(node)  # reads much of the archive, so a damaged one is not served
        async with contextlib.AsyncExitStack() as stack:
            dashboard = None
            if settings.admin != "off":
                from restante.common import admin_http  # aiohttp takes a third of the start-up time
                from restante.waku.node import status_pages

                admin_address = parse_address(settings.admin, "--admin")
                pages = status_pages.admin_pages(node, data, settings.reports_url)
                admin = admin_http.serving_admin(*admin_address, pages, token, settings.admin_host)
                dashboard = await stack.enter_async_context(admin)
            proxies = parse_networks(settings.trust_proxy, "--trust-proxy")
            proxied = []
            for listen_address in parse_listen_addresses(settings.listen, "--listen"):
                for bound_address in await node.listen(listen_address, proxies):
                    _print_enode(key, bound_address)  # the first line that a person sees
                    proxied += [bound_address] * listen_address.proxied
            if dashboard is not None:
                log.info("the dashboard is open", url=f"http://{shown_address(dashboard[0])}/")
            log.info("listening", version=__version__, data=settings.data)
            if trusts_everybody(proxies, proxied):
                log.warning(EVERYBODY_TRUSTED)
            gc.freeze()  # the garbage collector need not scan the program's own objects again and again
            async with ServiceManager(os.environ).serving(signals.stop):
                await _run_until(signals.stop, node, peers)
    finally:
        await archive.close()


def _print_enode(key: Key, bound_address: str) -> None:
    """Print the enode on standard output, and nothing else: clients need it to connect."""
    if bound_address.startswith("unix:"):
        return  # an enode contains no path
    host, port = parse_address(bound_address, "--listen")
    assert host is not None
    print(Enode(key.public, host, port), flush=True)  # noqa: T201 - the one line that scripts read
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - to warn that peers cannot dial this address
        warning = f"peers cannot dial {host}: replace it in the enode by the public address of this node"
        print(warning, file=sys.stderr)  # noqa: T201


def static_peers(settings: WakuServe, key: Key | None) -> list[Enode]:
    """Return the static peers without duplicates. Raises Misuse if one is this node; a new key (None) is nobody's."""
    peers = {(peer.public, peer.address): peer for peer in map(enode.parse, settings.peer)}
    for peer in peers.values():
        if key is not None and peer.public == key.public:
            raise Misuse(f"--peer {peer}: this is the key of the node itself: leave it out")
    return list(peers.values())


def _mailserver(settings: WakuServe) -> Mailserver:
    limits = settings.limits
    topics = frozenset(read_topic(topic, "--topics") for topic in settings.topics)
    archive_terms = ArchiveTerms(
        retention=int(settings.retention * SECONDS_PER_DAY) if settings.retention else None,
        retention_bytes=settings.retention_bytes,
        topics=topics or None,
    )
    return Mailserver(
        Policy(min_pow=settings.min_pow, max_size=limits.envelope_bytes, max_ttl=settings.max_ttl),
        archive_terms,
        Pool(limits.known_bytes, limits.pool_bytes),
        2 * limits.unsaved_bytes,
    )


def password_key(settings: WakuServe) -> SymmetricKey:
    """Return the key of the requesters' password. Raises Misuse."""
    return SymmetricKey.from_password(read_password(settings.password_file, os.environ) or OFFLINE_INBOX)


def history_terms(settings: WakuServe, key: Key, password: SymmetricKey) -> HistoryTerms:
    """Return which requests for history the node answers. `password` opens those that are in envelopes."""
    return HistoryTerms(
        demands=Demands(
            # Our public key is in our enode. If it opened requests, a password would restrict no requester.
            keys=(password, key) if "plain" in settings.requests else (password,),
            min_pow=settings.min_pow,
            require_signature=settings.require_signature,
            forms=frozenset(settings.requests),
        ),
        descending=settings.order == "desc",
        allow=frozenset(node_id(enode.parse(text).public) for text in settings.allow) or None,
    )


def _peer_limits(settings: WakuServe, descriptors: int, protected: int) -> PeerLimits:
    """Return how many connections are accepted. If descriptors allow fewer than the settings, log it.

    Without a free descriptor, libuv closes new connections and reports nothing. `protected` nodes are always
    accepted.
    """
    limits = PeerLimits(max_peers=settings.max_peers, max_peers_per_address=settings.max_peers_per_address)
    room = descriptors - OWN_DESCRIPTORS
    room = max(2, room - min(RESERVED_DESCRIPTORS, room // 8) - protected)
    if limits.max_peers + limits.max_handshakes <= room:
        return limits
    peers = min(limits.max_peers, room - min(limits.max_handshakes, room // 4))
    fitting = msgspec.structs.replace(limits, max_peers=peers, max_handshakes=room - peers)
    log.warning(
        "too few file descriptors for --max-peers: raise their limit (ulimit -Hn)",
        descriptors=descriptors,
        peers=fitting.max_peers,
        handshakes=fitting.max_handshakes,
    )
    return fitting


async def _run_until(stop: asyncio.Event, node: Node, peers: list[Enode]) -> None:
    """Serve until a signal, then drain. Raises StoreError if a commit failed."""
    archiving = asyncio.create_task(node.archiving.run())
    others = [asyncio.create_task(_tick(node)), asyncio.create_task(prune_regularly(node))]
    others += [asyncio.create_task(node.stay_connected(peer)) for peer in peers]
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait({archiving, waiting, *others}, return_when=asyncio.FIRST_COMPLETED)
    for task in (archiving, *others):
        if task.done():
            task.result()  # none of these tasks ends without an error
    waiting.cancel()
    for task in others:
        task.cancel()
    await asyncio.gather(waiting, *others, return_exceptions=True)
    await node.drain(archiving)


async def _tick(node: Node) -> None:
    """Call the node's `tick` every second, and log the counts of every minute."""
    second = 0
    before: Counter[str | RefusalReason] = Counter()
    while True:
        await asyncio.sleep(1)
        second += 1
        node.tick()
        if second % 60 == 0:
            counts = log_counts(node)
            log_minute(node, counts - before)
            before = counts


def log_counts(node: Node) -> Counter[str | RefusalReason]:
    """Return all counts of a node, refused envelopes by the reason and others by their names in the log."""
    mailserver, lost = node.mailserver, Counter[str]()
    for reason, count in node.lost.items():
        lost[f"lost: {reason.name.lower() if reason is not None else LOST_TEXT}"] = count
    counts = mailserver.counts + node.counts + lost + node.relay.counts + node.history_requests.counts
    return mailserver.refusals + counts


def log_minute(node: Node, minute: Counter[str | RefusalReason]) -> None:
    """Log the counts of a minute, without peers and topics."""
    counts = {key.name if isinstance(key, RefusalReason) else key: count for key, count in minute.items()}
    log.info("the last minute", peers=len(node.peers), hashes=len(node.mailserver.pool.known_hashes), **counts)
    offered = minute[EnvelopeCount.NEW] + sum(minute[reason] for reason in REFUSAL_REASONS)
    untimely = minute[FUTURE] + minute[OLD]
    if offered >= CLOCK_WARNING_MIN and untimely > CLOCK_WARNING_SHARE * offered:
        log.warning("a fifth of all envelopes seem to be from the future or too old: check the clock of this machine")


async def prune_regularly(node: Node) -> None:
    """Prune every `PRUNE_INTERVAL`, and at once when the archive is full, but not before `PRUNE_GRACE_SECONDS`."""
    await node.clock.pause(PRUNE_GRACE_SECONDS)
    while True:
        node.archiving.short_of_room.clear()
        try:
            removed = await node.archiving.prune()
        except StoreBusy as error:
            log.warning("pruning failed", reason=str(error))
        else:
            if removed:
                log.info("pruned", envelopes=removed)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PRUNE_INTERVAL):
                await node.archiving.short_of_room.wait()


async def log_first_prune(node: Node) -> None:
    """Log what the first prune will remove. It reads the index of topics, whether anything is pruned or not."""
    terms = node.mailserver.terms
    old = await node.archive.older(node.now() - (terms.retention or 0))
    if old and terms.retention is not None:
        log.warning(
            "envelopes are older than --retention and will be removed; --retention 0 keeps them",
            envelopes=old,
            in_seconds=PRUNE_GRACE_SECONDS,
        )
    if terms.retention_bytes is not None:
        over = (await node.archive.counts()).bytes - terms.retention_bytes
        if over > 0:
            log.warning(
                "the archive is larger than --retention-bytes; the oldest envelopes will be removed",
                bytes=over,
                in_seconds=PRUNE_GRACE_SECONDS,
            )
