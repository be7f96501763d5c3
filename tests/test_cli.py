"""The command as its users run it: its output, its exit code; a server in a process of its own."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import structlog
import typer
from aiohttp import ClientSession
from msgspec import Struct
from msgspec.structs import fields

from restante import __version__
from restante.cli.main import CLIENT, application
from restante.common import logs
from restante.mailbox.core.limits import Limits
from restante.mailbox.settings import Serve
from restante.mailbox.store import status
from restante.mailbox.store.schema import connect
from restante.waku.settings import WakuServe
from support.bounds import BOUND, bounded
from support.mailbox.clients import Clients
from support.mailbox.raw_socket import TEXT, RawSocket, frame
from support.ports import held_port
from support.processes import called, environment, restante, run, serving, started

MAX_MODULES = 500
"""Modules that are imported until a mailbox server listens. They are most of its start-up time."""


def test_version() -> None:
    assert restante("--version").stdout == f"restante {__version__}\n"


@pytest.mark.parametrize(("command", "settings"), [("serve", Serve), ("waku serve", WakuServe)])
def test_help_shows_every_setting_and_its_default(command: str, settings: type[Struct]) -> None:
    shown = " ".join(called(*command.split(), "--help").stdout.split())
    for name in ("config", "limit", *settings.__struct_fields__[:-1]):  # the last one is `limits`
        assert f" --{name.replace('_', '-')} " in shown, name
    for field in fields(settings):
        if isinstance(field.default, str | int | float) and field.default is not False:
            said = shown.partition(f" --{field.name.replace('_', '-')} ")[2].partition(" --")[0]
            default = f"{field.default:.10g}" if isinstance(field.default, float) else field.default
            assert said.endswith(f" Default: {default}."), field.name


@pytest.mark.parametrize("group", [(), ("waku",), ("pipeline",), ("timing",), ("config",)])
def test_the_list_of_commands_has_a_whole_sentence_for_each(group: tuple[str, ...]) -> None:
    shown = called(*group, "--help", COLUMNS="80").stdout
    assert [line for line in shown.partition("Commands:")[2].splitlines() if line.endswith("...")] == []


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("--version", "aiohttp coincurve cryptography picows plyvel pyarrow pyspark sha3 uvloop"),
        ("send --nothing", "cryptography restante.common.settings restante.mailbox restante.pipeline restante.waku"),
        ("health 127.0.0.1:1", "aiohttp picows restante.pipeline restante.waku rich sqlite3 structlog uvloop"),
        (
            "serve --data data --listen 127.0.0.1:0 --admin off",
            "aiohttp coincurve cryptography deltalake duckdb nacl prometheus_client pyarrow rich segno sha3 twisted",
        ),
    ],
)
def test_a_command_imports_nothing_that_it_does_not_need(command: str, unneeded: str, tmp_path: Path) -> None:
    """A server: before it listens."""
    program = (
        "import sys\n"
        "async def listen(self, address): sys.exit(0)\n"
        "if 'serve' in sys.argv:\n"
        "    from restante.mailbox.server.listeners import Listeners; Listeners.listen = listen\n"
        "from restante.cli.main import main\n"
        "try: main()\n"
        "finally: print(*sys.modules)"
    )
    modules = run(sys.executable, "-c", program, *command.split(), cwd=tmp_path).stdout.split()
    assert "restante.cli.main" in modules
    assert len(modules) < MAX_MODULES
    assert [module for module in modules if module.startswith(tuple(unneeded.split()))] == []


def test_the_commands_of_the_client_are_the_same_alone_and_among_all() -> None:
    alone, among = (
        {name: [(option.name, option.opts) for option in command.params] for name, command in commands.items()}
        for commands in (typer.main.get_group(application(name)).commands for name in ("send", ""))
    )
    assert alone == {name: among[name] for name in CLIENT}


def test_the_server_starts_without_the_optional_imports_of_structlog_which_a_program_may_have() -> None:
    code = "import restante.mailbox.server.main, sys; print([m for m in ('rich', 'twisted') if m in sys.modules])"
    code += "; import rich.errors; print('twisted' in sys.modules, rich.errors)"
    assert run(sys.executable, "-c", code).stdout.startswith("[]\nFalse <module")


def test_config_show_prints_every_setting_and_its_source(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('[serve]\nmotd = "hi"\n')
    shown = called("config", "show", "--config", str(file), "--prune-after", "60", RESTANTE_BLUR_USAGE="5").stdout
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in shown.splitlines()}
    limits = [f"limits.{name}" for name in Limits.__struct_fields__]
    assert list(lines) == [*Serve.__struct_fields__[:-1], *limits]
    assert lines["motd"] == f'= "hi" # {file}'
    assert lines["prune_after"] == "= 60.0 # --prune-after"
    assert lines["blur_usage"] == "= 5 # RESTANTE_BLUR_USAGE"
    assert lines["listen"] == '= ["127.0.0.1:4000"] # default'


UNNAMED = "--data is empty: name a directory"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("serve --frames both", "--frames: 'both' is not binary or text"),
        ("config show --config gone.toml", "cannot read gone.toml: No such file or directory (--config)"),
        *((f"{command} --data ", UNNAMED) for command in ("status", "backup b", "restore b", "import --usage u")),
        *((f"{command} --data ", UNNAMED) for command in ("export u", "waku export e.rlp", "waku import e.rlp")),
        *((f"{command} --data ", UNNAMED) for command in ("waku check", "waku backup b")),
    ],
)
def test_misuse_is_one_sentence_and_exit_code_2(command: str, sentence: str) -> None:
    done = called(*command.split(" "))
    assert (done.returncode, done.stderr) == (2, f"restante: {sentence}\n")


def test_an_address_that_cannot_be_used_is_found_before_the_data_directory_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for address, reason in (
            (f"127.0.0.1:{taken.getsockname()[1]}", "Address already in use"),
            ("192.0.2.1:4000", "Cannot assign requested address"),  # for documentation: no machine has it
        ):
            for flag, other in (("--listen", "--admin"), ("--admin", "--listen")):
                done = called("serve", "--data", tmp_path / "data", flag, address, other, "127.0.0.1:0")
                assert done.returncode == 2
                assert done.stderr == f"restante: cannot listen on {address}: {reason} ({flag})\n"
                assert not (tmp_path / "data").exists()


def test_a_port_in_use_is_found_before_slow_imports(tmp_path: Path) -> None:
    program = "import sys; from restante.cli.main import main\ntry: main()\nfinally: print(*sys.modules)"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run(sys.executable, "-c", program, "serve", "--data", tmp_path / "data", "--listen", here)
    assert ended.returncode == 2
    assert "Address already in use (--listen)" in ended.stderr
    assert not {"picows", "uvloop", "aiohttp", "sqlite3", "structlog"} & set(ended.stdout.split())
    assert not (tmp_path / "data").exists()


async def test_a_server_is_healthy_is_the_only_one_of_its_data_and_drains_on_sigterm(tmp_path: Path) -> None:
    assert called("status", "--data", tmp_path).returncode == 2
    with held_port() as admin:
        async with serving(tmp_path, options=("--admin", f"127.0.0.1:{admin}")) as server, ClientSession() as http:
            async with bounded("an answer"), http.get(f"http://127.0.0.1:{admin}/healthz") as answer:
                assert (answer.status, await answer.read()) == (200, b"ok\n")
            async with started(tmp_path) as second:
                assert await second.ended() == 1
                assert second.said["stderr"] == (
                    f"restante: another process is using the data directory {tmp_path}:"
                    " stop it, or name another with --data\n"
                )
            found = json.loads(called("status", "--data", tmp_path, "--json").stdout)
            assert (found["running"], found["age"], found["mailboxes"]) == (True, None, 0)
            shown = called("status", RESTANTE_DATA=str(tmp_path)).stdout
            assert "server        running\nas of         never written\n" in shown
            await server.stop()
            events = [json.loads(line)["event"] for line in server.log]
            assert events == ["the dashboard is open", "listening", "draining", "stopped"]
    assert "server        not running\n" in called("status", "--data", tmp_path).stdout


async def test_a_server_whose_log_nobody_reads_serves_and_stops(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, Clients() as clients:
        server.close("stderr")
        await (await clients.connect(server.url)).leave()
        await server.stop()


def test_status_counts_what_is_live(tmp_path: Path) -> None:
    with closing(connect(str(tmp_path / "restante.sqlite"))) as database:
        sides = '[{"side":"a","added":%f},{"side":"b","added":2e9}]' % (time.time() - 300)
        for key, app in ((1, "x"), (2, "x"), (3, "y")):
            database.execute("INSERT INTO mailboxes VALUES (?, ?, 'm', 1, 0, 0, ?, 0)", (key, app, sides))
        database.execute("INSERT INTO nameplates VALUES (4, 'x', '1', 'm', 0, '[]')")
        database.execute("""INSERT INTO messages VALUES (1, 1, 'a', '"p"', '""', 'null', 1)""")
        database.execute(
            "UPDATE service SET saved = ?, pruned = ?, seconds = 90000", (time.time() - 150, time.time() - 270)
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
        "last prune    4 min ago",
        "service time  25 h",
    ]


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_fault_is_logged_by_its_type_and_place_alone(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    mailboxes: dict[str, int] = {}
    try:
        mailboxes["mailbox-of-somebody"] += 1
    except KeyError as fault:
        try:
            logs.start(form)
            structlog.get_logger().error("a command failed", fault=logs.where(fault))
        finally:
            structlog.reset_defaults()
    line = capfd.readouterr().err
    assert "mailbox-of-somebody" not in line
    assert re.search(r"KeyError < test_cli\.py:\d+", line)


async def test_logs_hold_no_addresses_names_or_bodies(tmp_path: Path) -> None:
    """A whole session, good and bad frames: nothing of it is in the log."""
    async with serving(tmp_path) as server:
        socket = await RawSocket.dial(server.port)
        socket.say(type="bind", appid="secret-app", side="secret-side")
        socket.say(type="claim", nameplate="424242")
        socket.say(type="open", mailbox="secret-mailbox")
        socket.say(type="add", phase="secret-phase", body="secret-body")
        socket.say(type="claim", nameplate="secret-plate")
        socket.write(frame(TEXT, b"secret-garbage"))
        assert (await socket.last_words())[1] == 1007
        await server.stop()
        rest = "\n".join(server.log[1:])
    assert "draining" in rest
    assert not [word for word in ("secret", "424242", "127.0.0.1") if word in rest]


@pytest.mark.parametrize(("unbuffered", "more"), [("", ""), ("1", " or a temporary file")])
def test_results_that_cannot_be_written_are_one_sentence_and_without_a_reader_none(
    unbuffered: str, more: str
) -> None:
    full = f"restante: cannot write to standard output{more}: No space left on device\n"
    for standard_output, said in (("/dev/full", full), ("", "")):
        reading, writing = os.pipe()
        os.close(reading)
        with open(standard_output or writing, "wb") as results:  # noqa: PTH123 - or a pipe that nobody reads
            done = subprocess.run(
                [sys.executable, "-m", "restante", "config", "show"],
                stdout=results,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(PYTHONUNBUFFERED=unbuffered),
                check=False,
                timeout=BOUND,
            )
        assert (done.returncode, done.stderr) == (1, said)
