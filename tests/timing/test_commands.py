"""`restante timing` as its user calls it: files in, a page, text, JSON or trace events out."""

from __future__ import annotations

import fcntl
import json
import os
import random
import stat
import subprocess
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
        events += [
            {"name": planted[4], "start": began, "stop": began + 1, "details": {"waiting": planted[5]}},
            {
                "name": "input code",
                "start": began,
                "stop": began + 1,
                "details": {"waiting": "user", "code": planted[0]},
            },
            {
                "name": "ws_send",
                "start": began,
                "stop": None,
                "details": {"_side": side, "type": planted[1], "id": "x"},
            },
            {
                "name": "ws_receive",
                "start": began,
                "stop": None,
                "details": {
                    "_side": side,
                    "message": {"type": "message", "side": side, "phase": planted[2], "id": planted[3]},
                },
            },
        ]
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


BOTH = ("sender.json", "receiver.json", "--server", "trace.jsonl")
FORMS = {"page": ("-o", "out"), "text": ("--text",), "json": ("--json",), "trace events": ("--trace-event",)}


@pytest.mark.parametrize("form", FORMS)
def test_no_output_has_anything_that_the_clients_kept_between_themselves(logs: Path, form: str) -> None:
    said = render(*BOTH, *FORMS[form])
    assert said.returncode == 0, said.stderr
    shown = said.stdout + said.stderr + ((logs / "out").read_text() if form == "page" else "")
    assert len(shown) > 1000
    assert [secret for secret in (*SECRETS, *SIDES.values()) if secret in shown] == []


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_comparison_has_nothing_that_the_clients_kept_between_themselves(
    logs: Path, options: tuple[str, ...]
) -> None:
    (logs / "again.json").write_bytes((logs / "sender.json").read_bytes())
    said = compare("--server", "trace.jsonl", *options, "sender.json", "--", "again.json")
    assert said.returncode == 0, said.stderr
    shown = said.stdout + said.stderr
    assert len(shown) > 500
    assert [secret for secret in (*SECRETS, *SIDES.values()) if secret in shown] == []


@pytest.mark.usefixtures("logs")
def test_the_forms_exclude_each_other() -> None:
    said = render(*BOTH, "--json", "--text")
    assert (said.returncode, said.stdout) == (2, "")
    assert "--text and --json exclude each other" in said.stderr


@pytest.mark.parametrize("form", FORMS)
def test_a_file_is_written_whole_or_not_at_all(logs: Path, form: str) -> None:
    options = (*(each for each in FORMS[form] if each not in {"-o", "out"}), "-o", "nowhere/out")
    said = render(*BOTH, *options)
    assert said.returncode == 1
    assert "cannot write nowhere/out: No such file or directory" in said.stderr
    assert not (logs / "nowhere").exists()


@pytest.mark.parametrize("form", FORMS)
def test_a_pipe_is_written_and_stays_a_pipe(logs: Path, form: str) -> None:
    """Also /dev/stdout: a file in its place would be lost to the reader, and the device to everyone."""
    os.mkfifo(logs / "pipe")
    options = (each for each in FORMS[form] if each not in {"-o", "out"})
    reader = os.open(logs / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)  # the whole output fits, so nobody needs to read meanwhile
        said = render(*BOTH, *options, "-o", "pipe")
        assert said.returncode == 0, said.stderr
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


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    for mode in (0o644, 0o600):
        (tmp_path / "out").touch()
        (tmp_path / "out").chmod(mode)
        write_output(tmp_path / "out", b"new")
        assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == mode


@pytest.mark.usefixtures("logs")
def test_a_device_that_is_full_is_one_sentence(logs: Path) -> None:
    (logs / "full").symlink_to("/dev/full")
    said = render("sender.json", "-o", "full")
    assert (said.returncode, said.stderr) == (1, "restante: cannot write full: No space left on device\n")


def test_links_that_lead_to_each_other_are_one_sentence(logs: Path) -> None:
    (logs / "one").symlink_to("other")
    (logs / "other").symlink_to("one")
    for said in (render("one", "-o", "out"), compare("one", "--", "other")):
        assert (said.returncode, said.stderr) == (
            2,
            "restante: cannot read one: Too many levels of symbolic links\n",
        )
    assert render(*BOTH, "-o", "one").returncode == 0
    assert (logs / "one").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.usefixtures("logs")
def test_the_output_may_not_be_a_directory() -> None:
    said = render(*BOTH, "-o", ".")
    assert said.returncode == 2
    assert ". is a directory: name a file with --output" in said.stderr


@pytest.mark.parametrize("name", ["sender.json", "./receiver.json", "trace.jsonl"])
def test_the_output_may_not_replace_an_input(logs: Path, name: str) -> None:
    before = (logs / name).read_bytes()
    said = render(*BOTH, "-o", name)
    assert said.returncode == 2
    assert "is one of the files that are read" in said.stderr
    assert (logs / name).read_bytes() == before


@pytest.mark.usefixtures("logs")
def test_three_logs_are_refused() -> None:
    said = render("sender.json", "receiver.json", "sender.json")
    assert said.returncode == 2
    assert "3 logs were given" in said.stderr


@pytest.mark.usefixtures("logs")
def test_the_skew_of_the_user_replaces_the_estimate() -> None:
    said = render(*BOTH, "--json", "--skew", "sender=2.5")
    sender, receiver = json.loads(said.stdout)["clients"]
    assert (sender["offset_us"], sender["error_us"], sender["given"]) == (2_500_000, 0, True)
    assert not receiver["given"]
    assert abs(receiver["offset_us"] + 500_000) <= receiver["error_us"]


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize("skew", ["", "sender", "sender=", "server=1", "sender=x", "sender=nan", "sender=1e10", "=1"])
def test_a_skew_that_is_none_is_refused(skew: str) -> None:
    said = render(*BOTH, "--skew", skew)
    assert said.returncode == 2
    assert "write sender=SECONDS or receiver=SECONDS" in said.stderr


@pytest.mark.usefixtures("logs")
def test_a_skew_of_a_client_without_a_log_is_refused() -> None:
    said = render("sender.json", "--skew", "receiver=1")
    assert said.returncode == 2
    assert "--skew receiver=…: no log of the receiver was given" in said.stderr


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


def compare(*arguments: str) -> subprocess.CompletedProcess[str]:
    return called("timing", "compare", *arguments)


@pytest.mark.usefixtures("runs")
def test_a_slower_network_is_found_and_nothing_else() -> None:
    said = compare("--json", *OLD, "--", *NEW)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    verdicts = {(each["kind"], each["name"]): each["verdict"] for each in found["changes"]}
    assert verdicts["elapsed", "network"] == verdicts["median", "network"] == "slower"
    assert "faster" not in verdicts.values()
    assert verdicts["elapsed", "server"] == "cannot tell"
    assert "Slower: " in compare(*OLD, "--", *NEW).stdout


@pytest.mark.usefixtures("runs")
def test_too_few_runs_cannot_tell() -> None:
    said = compare(*OLD[:3], "--", *NEW[:3])
    assert said.returncode == 0
    assert "Cannot tell: there are too few runs. Each group needs at least " in said.stdout


REFUSED = {
    "one group": ((*OLD,), "there is no second group"),
    "nothing after the dashes": ((*OLD, "--"), "there is no second group"),
    "a log twice": (("old0", "old1", "--", "old1"), "old1 was given twice"),
    "a log that is missing": (("old0", "--", "new9"), "cannot read new9: No such file or directory"),
    "other clients": (("old0", "--", "receiver"), "one group has the sender's logs only"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_groups_that_cannot_be_compared_are_refused(runs: Path, kind: str) -> None:
    asked = {"name": "input code", "start": 1.8e9, "stop": 1.8e9, "details": {"waiting": "user"}}
    (runs / "receiver").write_text(json.dumps([asked]))
    arguments, words = REFUSED[kind]
    said = compare(*arguments)
    assert said.returncode == 2
    assert words in said.stderr
    assert said.stdout == ""
