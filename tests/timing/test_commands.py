"""`restante timing` as its user calls it: files in, a page, text, JSON or trace events out."""

from __future__ import annotations

import fcntl
import json
import os
import random
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from restante.common.atomic_file import write_output
from support.processes import called
from support.timing.drawn import SIDES, draw
from support.timing.drawn import Path as Route

SECRETS = [f"5ec4e7{number:02d}" for number in range(12)]
"""What must be in no output, planted in every field of a log that is not on the list of what is read."""


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the logs of both clients and a trace, with secrets wherever a client may write them."""
    drawn = draw(random.Random(1), {"sender": 0.5, "receiver": -0.5}, dict.fromkeys(SIDES, Route(0.01, 0.01, 0.001)))
    began = drawn.logs["sender"][0]["start"]
    for role, events in drawn.logs.items():
        side = SIDES[role]
        planted = SECRETS[:6] if role == "sender" else SECRETS[6:]
        for event in events:
            message = event["details"].get("message", event["details"])
            message |= {"nameplate": planted[0], "mailbox": planted[1], "body": planted[2], "welcome": planted[3]}
        message = {"type": "message", "side": side, "phase": planted[2], "id": planted[3]}
        for name, stop, details in (
            (planted[4], began + 1, {"waiting": planted[5]}),
            ("input code", began + 1, {"waiting": "user", "code": planted[0]}),
            ("ws_send", None, {"_side": side, "type": planted[1], "id": "x"}),
            ("ws_receive", None, {"_side": side, "message": message}),
        ):
            events.append({"name": name, "start": began, "stop": stop, "details": details})
        (tmp_path / f"{role}.json").write_text(json.dumps(events))
    for line in drawn.trace:
        line |= {"nameplate": SECRETS[0], "connection_of": {"address": SECRETS[1]}}
    unknown = {"connection": 1, "command": SECRETS[2], "id": SECRETS[3], "server_rx": began, "commit": None}
    bad = {"connection": SECRETS[4], "command": SECRETS[5], "id": "x", "server_rx": SECRETS[6]}
    planted_lines = b"".join(json.dumps(line).encode() + b"\n" for line in (unknown, bad))
    (tmp_path / "trace.jsonl").write_bytes(drawn.lines() + planted_lines)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def render(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return called("timing", "render", *arguments)


def compare(*arguments: str) -> subprocess.CompletedProcess[str]:
    return called("timing", "compare", *arguments)


BOTH = ("sender.json", "receiver.json", "--server", "trace.jsonl")
FORMS = {"page": (), "text": ("--text",), "json": ("--json",), "trace events": ("--trace-event",)}


@pytest.mark.parametrize("form", FORMS)
def test_no_output_has_anything_that_the_clients_kept_between_themselves(logs: Path, form: str) -> None:
    done = render(*BOTH, *FORMS[form], "-o", "out")
    assert done.returncode == 0, done.stderr
    if form in {"text", "json"}:
        (logs / "again.json").write_bytes((logs / "sender.json").read_bytes())
        options = () if form == "text" else ("--json",)
        compared = compare("--server", "trace.jsonl", *options, "sender.json", "--", "again.json")
        assert compared.returncode == 0, compared.stderr
        done.stdout += compared.stdout + compared.stderr
    output = (logs / "out").read_text() + done.stdout + done.stderr
    assert len(output) > 1000
    assert [secret for secret in (*SECRETS, *SIDES.values()) if secret in output] == []


@pytest.mark.parametrize("form", FORMS)
def test_a_pipe_is_written_and_stays_a_pipe(logs: Path, form: str) -> None:
    """Also /dev/stdout: a file in its place would be lost to the reader, and the device to everyone."""
    os.mkfifo(logs / "pipe")
    reader = os.open(logs / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)  # all of the output fits, so nobody needs to read meanwhile
        done = render(*BOTH, *FORMS[form], "-o", "pipe")
        assert done.returncode == 0, done.stderr
        assert len(os.read(reader, 1 << 20)) > 1000
    finally:
        os.close(reader)
    assert (logs / "pipe").is_fifo()


def test_a_link_stays_a_link(logs: Path) -> None:
    (logs / "link").symlink_to("out")
    for _ in range(2):  # to a file that is missing, and to one that is there
        assert render(*BOTH, "--json", "-o", "link").returncode == 0
        assert json.loads((logs / "out").read_text())["version"] == 1
        assert (logs / "link").is_symlink()


@pytest.mark.parametrize("path", ["/proc/self/fd/{}", "/dev/fd/{}", "link"])
def test_a_file_that_a_process_has_open_is_appended_to(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `-o /dev/stdout >> FILE` does."""
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "file").open("w") as file:
        file.write("before\n")
        file.flush()
        (tmp_path / "link").symlink_to(f"/proc/self/fd/{file.fileno()}")  # as /dev/stdout is one
        write_output(Path(path.format(file.fileno())), b"after\n")
    assert (tmp_path / "file").read_text() == "before\nafter\n"


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    (tmp_path / "out").touch()
    (tmp_path / "out").chmod(mode)
    write_output(tmp_path / "out", b"new")
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == mode


NO_SKEW = "write sender=SECONDS or receiver=SECONDS"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ((*BOTH, "--json", "--text"), 2, "--text and --json exclude each other"),
        (("sender.json", "receiver.json", "sender.json"), 2, "3 logs were given"),
        (("sender.json", "--skew", "receiver=1"), 2, "--skew receiver=…: no log of the receiver was given"),
        *(
            ((*BOTH, "--skew", skew), 2, NO_SKEW)
            for skew in ("", "sender", "sender=", "server=1", "sender=x", "sender=nan", "sender=1e10", "=1")
        ),
        ((*BOTH, "-o", "."), 2, ". is a directory: name a file with --output"),
        *(
            ((*BOTH, "-o", name), 2, "is one of the files that are read")
            for name in ("sender.json", "./receiver.json", "trace.jsonl")
        ),
        ((*BOTH, "--json", "-o", "nowhere/out"), 1, "cannot write nowhere/out: No such file or directory"),
        ((*BOTH, "-o", "nowhere/out"), 1, "cannot write nowhere/out: No such file or directory"),
        (("sender.json", "-o", "full"), 1, "restante: cannot write full: No space left on device\n"),
        (("loop", "-o", "out"), 2, "restante: cannot read loop: Too many levels of symbolic links\n"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_no_file(
    logs: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    (logs / "full").symlink_to("/dev/full")
    (logs / "loop").symlink_to("loop")
    before = {path.name: path.read_bytes() for path in logs.glob("*.json*")}
    done = render(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert {path.name: path.read_bytes() for path in logs.glob("*.json*")} == before
    assert not (logs / "nowhere").exists()


@pytest.mark.usefixtures("logs")
def test_the_skew_of_the_user_replaces_the_estimate() -> None:
    sender, receiver = json.loads(render(*BOTH, "--json", "--skew", "sender=2.5").stdout)["clients"]
    assert (sender["offset_us"], sender["error_us"], sender["given"]) == (2_500_000, 0, True)
    assert not receiver["given"]
    assert abs(receiver["offset_us"] + 500_000) <= receiver["error_us"]


# ── compare ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the sender's logs of 16 runs: old0 to old7, and new0 to new7 on a slower network."""
    for group, delay in (("old", 0.010), ("new", 0.050)):
        for number in range(8):
            dice = random.Random(f"{group} {number}")
            drawn = draw(dice, dict.fromkeys(SIDES, 0.0), dict.fromkeys(SIDES, Route(delay, delay, 0.001)))
            (tmp_path / f"{group}{number}").write_bytes(drawn.log("sender"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


OLD, NEW = ([f"{group}{number}" for number in range(8)] for group in ("old", "new"))


@pytest.mark.usefixtures("runs")
def test_a_slower_network_is_found_and_nothing_else() -> None:
    done = compare("--json", *OLD, "--", *NEW)
    assert done.returncode == 0, done.stderr
    verdicts = {(change["kind"], change["name"]): change["verdict"] for change in json.loads(done.stdout)["changes"]}
    assert verdicts["elapsed", "network"] == verdicts["median", "network"] == "slower"
    assert "faster" not in verdicts.values()
    assert verdicts["elapsed", "server"] == "cannot tell"
    assert "Slower: " in compare(*OLD, "--", *NEW).stdout
    assert "Cannot tell: there are too few runs. " in compare(*OLD[:3], "--", *NEW[:3]).stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (OLD, "there is no second group"),
        ((*OLD, "--"), "there is no second group"),
        (("old0", "old1", "--", "old1"), "old1 was given twice"),
        (("old0", "--", "new9"), "cannot read new9: No such file or directory"),
        (("old0", "--", "receiver"), "one group has the sender's logs only"),
    ],
)
def test_groups_that_cannot_be_compared_are_refused(runs: Path, arguments: Sequence[str], sentence: str) -> None:
    asked = {"name": "input code", "start": 1.8e9, "stop": 1.8e9, "details": {"waiting": "user"}}
    (runs / "receiver").write_text(json.dumps([asked]))
    done = compare(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
