"""The command as its users run it: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import structlog

from restante import __version__
from restante.config import Serve
from restante.mailbox.limits import Limits
from restante.mailbox.store import status
from restante.mailbox.store.schema import connect, migrations


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "restante", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, **environment},
    )


@contextmanager
def serving(data: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run a server; gives it and the log line with which it says where it listens."""
    command = [sys.executable, "-m", "restante", "serve", "--data", str(data), "--listen", "127.0.0.1:0", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield process, json.loads(process.stderr.readline())
        finally:
            if process.poll() is None:
                process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_version() -> None:
    assert run("--version").stdout == f"restante {__version__}\n"


def test_help_names_every_flag_of_serve() -> None:
    shown = run("serve", "--help", COLUMNS="200").stdout
    for name in (*Serve.__struct_fields__, "config", "limit"):
        if name == "limits":
            continue  # --limit NAME=NUMBER
        assert f"--{name.replace('_', '-')} " in shown, name


def test_importing_the_command_line_loads_no_servers() -> None:
    heavy = ("picows", "aiohttp", "uvloop", "pyspark", "coincurve", "cryptography", "sha3", "pyarrow", "plyvel")
    code = f"import restante.cli, sys; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_a_start_of_the_server_does_not_pay_for_what_structlog_would_like_to_have() -> None:
    code = "import rich.errors, restante.mailbox.serve, structlog, sys; print('twisted' in sys.modules, rich.errors)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("False <module")
    code = "import restante.mailbox.serve, sys; print([m for m in ('rich', 'twisted') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_config_show_tells_every_setting_and_its_source(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('[serve]\nmotd = "hi"\n')
    shown = run("config", "show", "--config", str(file), "--prune-after", "60", RESTANTE_BLUR_USAGE="5").stdout
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in shown.splitlines()}
    limits = [f"limits.{name}" for name in Limits.__struct_fields__]
    assert list(lines) == [*Serve.__struct_fields__[:-1], *limits]
    assert lines["motd"] == f'= "hi" # {file}'
    assert lines["prune_after"] == "= 60.0 # --prune-after"
    assert lines["blur_usage"] == "= 5 # RESTANTE_BLUR_USAGE"
    assert lines["listen"] == '= "127.0.0.1:4000" # default'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve", "--listen", "4000"), "restante: --listen: '4000' is not HOST:PORT"),
        (("serve", "--frames", "both"), "restante: --frames: 'both' is not binary or text"),
        (("config", "show", "--config", "gone.toml"), "restante: cannot read gone.toml: No such file or directory"),
        (("status", "--data", "/nowhere"), "restante: there is no mailbox server's data in /nowhere"),
    ],
)
def test_misuse_is_one_sentence_and_exit_code_2(words: tuple[str, ...], said: str) -> None:
    result = run(*words)
    assert result.returncode == 2
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1


def test_a_port_in_use_names_the_flag(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        here = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag, other in (("--listen", "--admin"), ("--admin", "--listen")):
            result = run("serve", "--data", str(tmp_path / flag), flag, here, other, f"127.0.0.1:{free_port()}")
            assert result.returncode == 2
            assert result.stderr == f"restante: cannot listen on {here}: Address already in use ({flag})\n"


def test_serve_tells_where_it_listens_is_healthy_and_drains_on_sigterm(tmp_path: Path) -> None:
    admin = f"127.0.0.1:{free_port()}"
    with serving(tmp_path, "--admin", admin) as (process, said):
        assert said["event"] == "listening"
        assert said["url"].startswith("ws://127.0.0.1:")
        with urllib.request.urlopen(f"http://{admin}/healthz", timeout=5) as answer:
            assert (answer.status, answer.read()) == (200, b"ok\n")
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=10)
        assert process.returncode == 0
        assert [json.loads(line)["event"] for line in rest.splitlines()] == ["draining", "stopped"]


def test_a_server_whose_log_nobody_reads_serves_and_stops(tmp_path: Path) -> None:
    with serving(tmp_path, "--admin", "off") as (process, _):
        assert process.stderr is not None
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0


def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "--admin", "off"):
        second = run("serve", "--data", str(tmp_path), "--admin", "off", "--listen", "127.0.0.1:0")
        assert second.returncode == 1
        assert second.stderr == (
            f"restante: another process is using the data directory {tmp_path}:"
            " stop it, or name another with --data\n"
        )


def test_data_of_a_newer_schema_and_foreign_files_are_refused(tmp_path: Path) -> None:
    for folder in ("newer", "foreign", "garbage"):
        (tmp_path / folder).mkdir()
    with closing(connect(str(tmp_path / "newer" / "restante.sqlite"))) as database:
        database.execute("PRAGMA user_version = 99")
    with closing(sqlite3.connect(tmp_path / "foreign" / "restante.sqlite")) as database:
        database.execute("CREATE TABLE cats (name TEXT)")
    (tmp_path / "garbage" / "restante.sqlite").write_bytes(b"not a database at all, but long enough to be one" * 99)
    for folder, words in {
        "newer": f"has schema 99, this program knows up to {len(migrations())}: use the newer restante",
        "foreign": "is not a database of this mailbox server; it was left as it is",
        "garbage": "file is not a database",
    }.items():
        before = (tmp_path / folder / "restante.sqlite").read_bytes()
        result = run("serve", "--data", str(tmp_path / folder), "--admin", "off", "--listen", "127.0.0.1:0")
        assert (result.returncode, result.stderr.count("\n")) == (1, 1), result.stderr
        assert words in result.stderr
        assert (tmp_path / folder / "restante.sqlite").read_bytes() == before


def test_status_reads_beside_a_running_server(tmp_path: Path) -> None:
    assert run("status", "--data", str(tmp_path)).returncode == 2
    with serving(tmp_path, "--admin", "off") as (process, _):
        found = json.loads(run("status", "--data", str(tmp_path), "--json").stdout)
        assert (found["running"], found["age"], found["mailboxes"]) == (True, None, 0)
        shown = run("status", RESTANTE_DATA=str(tmp_path)).stdout
        assert "server        running\nas of         never written\n" in shown
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)
    assert "server        not running\n" in run("status", "--data", str(tmp_path)).stdout


def test_status_counts_what_is_live(tmp_path: Path) -> None:
    with closing(connect(str(tmp_path / "restante.sqlite"))) as database:
        sides = '[{"side":"a","added":%f},{"side":"b","added":2e9}]' % (time.time() - 300)
        for key, app in ((1, "x"), (2, "x"), (3, "y")):
            database.execute("INSERT INTO mailboxes VALUES (?, ?, 'm', 1, 0, 0, ?)", (key, app, sides))
        database.execute("INSERT INTO nameplates VALUES (4, 'x', '1', 'm', 0, '[]')")
        database.execute("""INSERT INTO messages VALUES (1, 1, 'a', '"p"', '""', 'null', 1)""")
        database.execute(
            "UPDATE service SET saved = ?, pruned = ?, seconds = 90000", (time.time() - 150, time.time())
        )
    found = status.read(tmp_path)
    assert (found.applications, found.nameplates, found.mailboxes, found.messages, found.sides) == (2, 1, 3, 1, 6)
    assert status.render(found).splitlines() == [
        "server        not running",
        "as of         2 min ago, the last commit",
        "applications  2",
        "nameplates    1",
        "mailboxes     3",
        "messages      1",
        "sides         6",
        "oldest        5 min ago",
        "last prune    0 s ago",
        "service time  25 h",
    ]


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_fault_is_logged_by_its_type_and_place_alone(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    from restante.ops import logs

    secret = "mailbox-of-somebody"
    mailboxes: dict[str, int] = {}
    try:
        mailboxes[secret] += 1
    except KeyError as fault:
        try:
            logs.start(form)
            structlog.get_logger().error("a command failed", fault=logs.where(fault))
        finally:
            structlog.reset_defaults()
    said = capfd.readouterr().err
    assert secret not in said
    assert re.search(r"KeyError < test_cli\.py:\d+", said)


def test_logs_hold_no_addresses_names_or_bodies(tmp_path: Path) -> None:
    """A whole session, good and bad frames: nothing of it is in the log."""
    from websocket_client import talk

    with serving(tmp_path, "--admin", "off") as (process, said):
        talk(
            said["url"],
            [
                '{"type": "bind", "appid": "secret-app", "side": "secret-side"}',
                '{"type": "claim", "nameplate": "424242"}',
                '{"type": "open", "mailbox": "secret-mailbox"}',
                '{"type": "add", "phase": "secret-phase", "body": "secret-body"}',
                '{"type": "claim", "nameplate": "secret-plate"}',
                "secret-garbage",
            ],
        )
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=10)
    assert "secret" not in rest
    assert "424242" not in rest
    assert "127.0.0.1" not in rest
