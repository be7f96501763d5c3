"""`restante timing` as its user calls it: files in, a page, text, JSON or trace events out."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from restante.common.atomic_file import write_output
from restante.timing.comparison import Comparison, MeasureChange
from restante.timing.model import timeline as model
from support.documents import ROOT, Document
from support.processes import RESTANTE, called, run
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
    drawn.trace += [unknown, {"connection": SECRETS[4], "command": SECRETS[5], "id": "x", "server_rx": SECRETS[6]}]
    (tmp_path / "trace.jsonl").write_bytes(drawn.lines())
    monkeypatch.chdir(tmp_path)
    return tmp_path


render = partial(called, "timing", "render")

BOTH = ("sender.json", "receiver.json", "--server", "trace.jsonl")
FORMS = {"page": (), "text": ("--text",), "json": ("--json",), "trace events": ("--trace-event",)}


@pytest.mark.parametrize("form", FORMS)
def test_no_output_has_anything_that_the_clients_kept_between_themselves(logs: Path, form: str) -> None:
    """It is written to a pipe, which stays one: a file in the place of /dev/stdout would be lost to the reader."""
    os.mkfifo(logs / "pipe")
    reader = os.open(logs / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)  # all of the output fits, so nobody needs to read meanwhile
        done = render(*BOTH, *FORMS[form], "-o", "pipe")
        output = os.read(reader, 1 << 20).decode()
    finally:
        os.close(reader)
    assert (logs / "pipe").is_fifo()
    assert done.returncode == 0, done.stderr
    assert len(output) > 1000
    output += done.stdout + done.stderr
    if form in {"text", "json"}:
        (logs / "again.json").write_bytes((logs / "sender.json").read_bytes())
        groups = ("sender.json", "--", "again.json")
        done = called("timing", "compare", "--server", "trace.jsonl", *["--json"] * (form == "json"), *groups)
        assert done.returncode == 0, done.stderr
        output += done.stdout + done.stderr
    assert [secret for secret in (*SECRETS, *SIDES.values()) if secret in output] == []


def test_a_link_stays_a_link(logs: Path) -> None:
    (logs / "link").symlink_to("out")
    for _ in range(2):  # to a file that is missing, and to one that is there
        assert render(*BOTH, "--json", "-o", "link").returncode == 0
        assert json.loads((logs / "out").read_text())["version"] == 1
        assert (logs / "link").is_symlink()


@pytest.mark.parametrize("path", ["/proc/self/fd/{}", "/dev/fd/{}", "link"])
def test_a_file_open_in_a_process_is_appended_to(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `-o /dev/stdout >> FILE` does."""
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "file").open("w") as file:
        file.write("before\n")
        file.flush()
        (tmp_path / "link").symlink_to(f"/proc/self/fd/{file.fileno()}")  # as /dev/stdout is one
        write_output(Path(path.format(file.fileno())), b"after\n")
    assert (tmp_path / "file").read_text() == "before\nafter\n"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ((*BOTH, "--json", "--text"), 2, "--text and --json exclude each other"),
        (("sender.json", "receiver.json", "sender.json"), 2, "3 logs were given"),
        (("sender.json", "--skew", "receiver=1"), 2, "--skew receiver=…: no log of the receiver was given"),
        *(
            ((*BOTH, "--skew", skew), 2, "write sender=SECONDS or receiver=SECONDS")
            for skew in ("", "sender", "sender=", "server=1", "sender=x", "sender=nan", "sender=1e10", "=1")
        ),
        ((*BOTH, "-o", "."), 2, ". is a directory: name a file with --output"),
        *(
            ((*BOTH, "-o", name), 2, "is one of the files that are read")
            for name in ("sender.json", "./receiver.json", "trace.jsonl")
        ),
        ((*BOTH, "-o", "nowhere/out"), 1, "cannot write nowhere/out: No such file or directory"),
        (("sender.json", "-o", "full"), 1, "restante: cannot write full: No space left on device\n"),
        (("loop", "-o", "out"), 2, "restante: cannot read loop: Too many levels of symbolic links\n"),
        (("\x1b[31m", "-o", "out"), 2, "restante: cannot read '\\x1b[31m': No such file or directory\n"),
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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("old", "sender.json"), "there is no second group"),
        (("old", "sender.json", "--"), "there is no second group"),
        (("old", "sender.json", "--", "sender.json"), "sender.json was given twice"),
        (("old", "--", "new9"), "cannot read new9: No such file or directory"),
        (("old", "--", "asked"), "one group has the sender's logs only"),
    ],
)
def test_groups_that_cannot_be_compared_are_refused(logs: Path, arguments: Sequence[str], sentence: str) -> None:
    (logs / "old").write_bytes((logs / "sender.json").read_bytes())
    asked = {"name": "input code", "start": 1.8e9, "stop": 1.8e9, "details": {"waiting": "user"}}
    (logs / "asked").write_text(json.dumps([asked]))
    done = called("timing", "compare", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr


def test_runs_are_compared_as_the_guide_says(tmp_path: Path) -> None:
    for group, delay in (("old", 0.05), ("new", 0.01)):
        (tmp_path / group).mkdir()
        routes = dict.fromkeys(SIDES, Route(delay, delay, 0.001))
        for number in range(8):
            drawn = draw(random.Random(f"{group} {number}"), dict.fromkeys(SIDES, 0.0), routes)
            (tmp_path / group / f"{number}.json").write_bytes(drawn.log("receiver"))
    line = Document("docs/timing/guide.md").blocks["compare"].removeprefix("restante ")
    done = run("sh", "-c", f"{shlex.join(RESTANTE)} {line}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Faster: " in done.stdout


def test_the_guide_has_every_key_of_the_json() -> None:
    guide = (ROOT / "docs/timing/guide.md").read_text()
    tables = re.findall(r"^\| (?:key|in `\w+`) \|.*\n\|-.*\n((?:\|.*\n)+)", guide, re.MULTILINE)
    described = [re.findall(r"`(\w+)`", "".join(re.findall(r"^\|[^|]+", rows, re.MULTILINE))) for rows in tables]
    structs = (
        *(model.Timeline, model.TimelineClient, model.TimelineCommand, model.TimelineFrame, model.TimelineSpan),
        *(model.Elapsed, model.Delay, model.TimelineDelivery, Comparison, MeasureChange),
    )
    assert list(map(set, described)) == [set(struct.__struct_fields__) for struct in structs]
