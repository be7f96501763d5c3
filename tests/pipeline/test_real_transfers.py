"""What real transfers leave behind at two servers and with their clients, from the files to the built tables.

In a quick run, real logs are read (tests/timing/test_real_transfers.py), and Spark builds the tables of the vectors.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pytest

from restante.pipeline.build.run import build_tables
from restante.pipeline.tables import BUILDS
from support.mailbox.scene import Scene
from support.mailbox.servers import Reference, Restante, Server
from support.pipeline.runs import LakeWorld

TEXT = "held until called for"

SENT = Counter(bind=2, allocate=1, claim=2, release=2, open=2, add=6, close=2)
"""Commands of both clients: only who sends has a nameplate to allocate; each adds a pake, versions and a message."""


@pytest.mark.thorough
async def test_two_real_transfers_are_in_the_tables_as_they_happened(world: LakeWorld, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    servers = {
        "ours": Restante(tmp_path / "ours" / "server", "--trace", str(trace)),
        "reference": Reference(tmp_path / "reference" / "server"),
    }
    secrets = {secret for server in servers.values() for secret in await transfer(server)}
    assert len(secrets) > 20
    world.now = time.time() + 1
    results = world.ingest(
        f"ours={servers['ours'].folder / 'data'}",
        f"ours={trace}",
        f"reference={servers['reference'].folder / 'usage.sqlite'}",
        *(f"of-{name}@{name}={tmp_path / name / 'logs'}" for name in servers),
    )
    assert [result.failure for result in results] == [""] * len(results)
    assert world.version("quarantine") is None
    with world.run() as run:
        names = ("outcomes", "versions", "timing", "deliveries", "transfers")
        build_tables(run, builds={name: BUILDS[name] for name in names})
    lake = world.bytes()
    assert [secret for secret in secrets if secret.encode() in lake] == []

    outcomes = [(row["source"], row["kind"], row["app_id"], row["happy"]) for row in world.rows("outcomes")]
    app = "lothar.com/wormhole/text-or-file-xfer"
    assert sorted(outcomes) == [(name, kind, app, 1) for name in servers for kind in ("claimed", "nameplate")]
    clients: dict[str, Counter[str]] = defaultdict(Counter)
    for row in world.rows("versions"):  # midnight may be between them
        assert (row["implementation"], row["version"]) == ("python", version("magic-wormhole"))
        clients[row["source"]] += Counter({name: row[name] for name in ("connections", "mailboxes", "happy")})
    assert clients == {name: Counter(connections=2, mailboxes=1, happy=1) for name in servers}

    timing = world.rows("timing")
    for name in servers:
        assert Counter(row["what"] for row in timing if (row["server"], row["phase"]) == (name, "round trip")) == SENT
    unknown = {(row["server"], row["what"] == "add") for row in timing if row["us"] is None}
    assert unknown == {("reference", False)}, "there is no trace of that server: only an echo tells when it came"

    transfers = {row["server"]: row for row in world.rows("transfers")}
    assert transfers.keys() == servers.keys()
    for name, joined in transfers.items():
        files = {log: sha256((tmp_path / name / "logs" / f"{log}.json").read_bytes()).hexdigest() for log in LOGS}
        assert (joined["sender_file"], joined["receiver_file"]) == (files["send"], files["receive"])
        assert (joined["source"], joined["receiver_source"]) == (f"of-{name}",) * 2
        assert (joined["messages"], joined["roles_known"]) == (6, True)
        assert abs(joined["offset_us"]) <= joined["error_us"]
        assert joined["sender_waited_us"] > joined["receiver_waited_us"], "the receiver started later"
        deliveries = [row for row in world.rows("deliveries") if row["source"] == f"of-{name}"]
        phases = {(row["file"], row["phase"]) for row in deliveries}
        assert phases == {(file, phase) for file in files.values() for phase in ("pake", "version", "0")}


LOGS = ("send", "receive")


async def transfer(server: Server) -> set[str]:
    """Send a text through a server, with a log on either side. Return what the lake must not have of it."""
    logs = server.folder.parent / "logs"
    logs.mkdir()
    async with Scene(server.folder.parent, server) as scene:
        sender = await scene.start("sender", "--dump-timing", str(logs / "send.json"), "send", "--text", TEXT)
        code = await sender.code()
        receiver = await scene.start("receiver", "--dump-timing", str(logs / "receive.json"), "receive", code)
        for client in (receiver, sender):
            assert (await client.leaves()).exit_code == 0
        scene.assert_one_happy_session()
    secrets = {code, code.partition("-")[2], TEXT}
    for log in LOGS:
        for event in json.loads((logs / f"{log}.json").read_bytes()):
            for fields in (event["details"], event["details"].get("message", {})):
                secrets |= {fields[key] for key in ("_side", "side", "mailbox", "body") if key in fields}
    return secrets
