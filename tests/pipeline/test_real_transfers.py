"""What real transfers leave behind at two servers and with their clients, from the files to the built tables.

In a quick run, real logs are read (tests/timing/test_real_transfers.py), and the vectors are built by Spark.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from datetime import timedelta
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pytest

from restante.pipeline.build.run import build
from restante.pipeline.tables import BUILDS
from support.mailbox.scene import Scene
from support.mailbox.servers import Reference, Restante, Server
from support.pipeline.runs import LakeWorld, Row

APP = "lothar.com/wormhole/text-or-file-xfer"

SENT = Counter(bind=2, allocate=1, claim=2, release=2, open=2, add=6, close=2)
"""Commands of both clients: only who sends has a nameplate to allocate; each adds a pake, versions and a message."""

BUILT = ("outcomes", "versions", "timing", "deliveries", "transfers")

WHOLE = ("network out", "server", "network in", "round trip")
IN_SERVER = ("queue", "commit", "answer")

ROUNDING_US = 2
"""Of a sum of parts: each time is a whole microsecond, and the wire's another's than the trace's."""


@pytest.mark.thorough
async def test_two_real_transfers_are_in_the_tables_as_they_happened(world: LakeWorld, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"

    class Traced(Restante):
        flags = ("--trace", str(trace))

    ours = Traced(tmp_path / "ours" / "server")
    reference = Reference(tmp_path / "reference" / "server")
    secrets = {secret for server in (ours, reference) for secret in await transfer(server)}
    assert len(secrets) > 20
    world.now = time.time() + 1
    results = world.ingest(
        f"ours={ours.folder / 'data'}",
        f"ours={trace}",
        f"reference={reference.folder / 'usage.sqlite'}",
        f"one@ours={ours.folder.parent / 'logs'}",
        f"other@reference={reference.folder.parent / 'logs'}",
    )
    assert [each.failure for each in results] == [""] * len(results)
    assert world.version("quarantine") is None
    with world.run() as run:
        build(run, builds={name: BUILDS[name] for name in BUILT})
    lake = world.bytes()
    assert [secret for secret in secrets if secret.encode() in lake] == []

    ended = Counter((row["source"], row["kind"]) for row in world.rows("outcomes") for _ in range(row["ended"]))
    assert ended == Counter(
        {(source, kind): 1 for source in ("ours", "reference") for kind in ("nameplate", "claimed")}
    )
    assert {(row["app_id"], row["happy"]) for row in world.rows("outcomes")} == {(APP, 1)}

    assert clients(world.rows("versions")) == {
        (source, "version", "python", version("magic-wormhole")): Counter(connections=2, mailboxes=1, happy=1)
        for source in ("ours", "reference")
    }

    timing = world.rows("timing")
    for source in ("ours", "reference"):
        assert Counter(what for what, _ in commands(timing, source)) == SENT
    for what, phases in commands(timing, "ours"):
        us = {phase: row["us"] for phase, row in phases.items()}
        # A bind, or an open of what a claim opened, changes nothing; but it may be in a batch with what does.
        changed = {"commit", "answer"} if what == "add" or "commit" in us else set()
        assert set(us) == {*changed, "queue", *WHOLE}, (what, us)
        assert None not in us.values(), f"{what} has no partner in the trace: {us}"
        assert us["network out"] + us["server"] + us["network in"] == us["round trip"], (what, us)
        assert abs(sum(us.get(part, 0) for part in IN_SERVER) - us["server"]) <= ROUNDING_US, (what, us)
        assert min(us.values()) >= -ROUNDING_US, (what, us)
    for what, phases in commands(timing, "reference"):
        assert set(phases) == set(WHOLE), f"{what}: there is no trace of that server"
        assert (phases["network out"]["us"] is None) == (what != "add"), f"{what}: only an echo tells when it came"
        assert phases["round trip"]["us"] > 0, what
    for row in timing:  # one machine has one clock
        assert row["error_us"] is None or abs(row["offset_us"]) <= row["error_us"] + ROUNDING_US, row

    transfers = {row["server"]: row for row in world.rows("transfers")}
    assert len(world.rows("transfers")) == len(transfers) == 2
    for name, source in (("ours", "one"), ("reference", "other")):
        assert_joined(transfers[name], [row for row in world.rows("deliveries") if row["source"] == source])
        assert (transfers[name]["source"], transfers[name]["receiver_source"]) == (source, source)
        logs = {sha256(file.read_bytes()).hexdigest() for file in (tmp_path / name / "logs").iterdir()}
        assert {transfers[name][f"{role}_file"] for role in ("sender", "receiver")} == logs
        sent = sha256((tmp_path / name / "logs" / "send.json").read_bytes()).hexdigest()
        assert transfers[name]["sender_file"] == sent


def assert_joined(transfer: Row, deliveries: list[Row]) -> None:
    """Check what is known of the messages of both sides of a transfer on one machine."""
    phases = Counter((row["file"] == transfer["sender_file"], row["phase"]) for row in deliveries)
    assert phases == Counter({(sends, phase): 1 for sends in (True, False) for phase in ("pake", "version", "0")})
    for row in deliveries:
        assert {row["file"], row["peer_file"]} == {transfer["sender_file"], transfer["receiver_file"]}
        assert row["us"] == row["network_out_us"] + row["at_server_us"] + row["network_in_us"]
        own_clock = (row["received"] - row["sent"]) // timedelta(microseconds=1)
        assert abs(row["us"] - own_clock) <= row["error_us"], "there is one clock"
        assert row["at_server_us"] >= 0
        assert row["us"] >= -row["error_us"]
    assert transfer["messages"] == 6
    assert transfer["roles_known"]
    assert abs(transfer["offset_us"]) <= transfer["error_us"]
    assert transfer["sender_waited_us"] > transfer["receiver_waited_us"], "the receiver started later"


async def transfer(server: Server) -> set[str]:
    """Send a text through a server, with a log on either side. Return what the lake must not have of it."""
    logs = server.folder.parent / "logs"
    logs.mkdir()
    async with Scene(server.folder.parent, server) as scene:
        sender = await scene._start(
            "sender", "--dump-timing", str(logs / "send.json"), "send", "--text", "held until called for"
        )
        code = await sender.code()
        receiver = await scene._start("receiver", "--dump-timing", str(logs / "receive.json"), "receive", code)
        for client in (receiver, sender):
            assert (await client.leaves()).exit_code == 0
        scene.assert_one_happy_session()
    secrets = {code, code.partition("-")[2], "held until called for"}
    for path in logs.iterdir():
        for event in json.loads(path.read_bytes()):
            for fields in (event["details"], event["details"].get("message", {})):
                secrets |= {fields[key] for key in ("_side", "side", "mailbox", "body") if key in fields}
    return secrets


def clients(rows: list[Row]) -> dict[tuple[str, ...], Counter[str]]:
    """Add up connections and mailboxes over days: midnight may be between them."""
    found: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for row in rows:
        who = (row["source"], row["attribution"], row["implementation"], row["version"])
        found[who] += Counter({name: row[name] for name in ("connections", "mailboxes", "happy")})
    return found


def commands(rows: list[Row], server: str) -> list[tuple[str, dict[str, Row]]]:
    """Return what clients sent to a server: each command, and its phases."""
    events: dict[tuple[str, int, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        if row["server"] == server:
            events[row["file"], row["id"], row["what"]][row["phase"]] = row
    return [(what, phases) for (_, _, what), phases in events.items() if "round trip" in phases]
