"""The command as its users run it: output, exit codes, settings, `health`, backups, the man page, the completions."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path

import pytest
import structlog
import typer
from aiohttp import ClientSession
from wormhole_mailbox_server.database import create_channel_db

from restante.cli.main import MODULES, app
from restante.cli.shell_files import COMPLETION_FILES, FOLDER, MAN_PAGE, Shell
from restante.common import logs
from restante.common.backups import last_backup
from restante.common.errors import Misuse
from restante.common.listening import bind_unix_socket
from restante.common.settings import resolve_settings
from restante.mailbox.core.limits import Limits
from restante.mailbox.settings import SERVE, Serve
from restante.mailbox.store import status
from restante.mailbox.store.schema import FILE, connect, migrations
from restante.waku.settings import WAKU
from stores.test_schema import thaw
from support.bounds import BOUND, bounded
from support.command_line import files
from support.documents import Document
from support.mailbox.clients import Clients
from support.mailbox.raw_socket import TEXT, RawSocket, frame
from support.ports import held_port, nobodys_port
from support.processes import RELAY, called, environment, restante, run, serving, started
from support.sqlite import alter
from support.waku.processes import node_process


@pytest.mark.parametrize("group", [(), ("client",), ("relay",), ("waku",), ("pipeline",), ("timing",), ("config",)])
def test_the_list_of_commands_has_a_whole_sentence_for_each(group: tuple[str, ...]) -> None:
    text = called(*group, "--help", COLUMNS="80").stdout
    assert [line for line in text.partition("Commands:")[2].splitlines() if line.endswith("...")] == []


THIRD_PARTY = "aiohttp coincurve cryptography plyvel prometheus_client pyarrow pyspark sha3 structlog uvloop"
OTHER_PARTS = "restante.common.settings restante.mailbox restante.pipeline restante.waku"
PARTS = f"{OTHER_PARTS} restante.client"


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("--version", f"{THIRD_PARTY} {PARTS} asyncio email msgspec picows rich"),
        ("send --text x --server ws://127.0.0.1:1", f"{THIRD_PARTY} {OTHER_PARTS} email importlib.metadata segno"),
        ("health 127.0.0.1:1", "aiohttp picows restante.pipeline restante.waku rich sqlite3 structlog uvloop"),
        ("serve --listen 192.0.2.1:4000", "aiohttp picows sqlite3 structlog uvloop"),  # no machine has this address
        ("waku serve --listen 192.0.2.1:4000", "aiohttp picows sqlite3 structlog uvloop"),
        (
            "serve --data data --listen 127.0.0.1:0 --admin off",
            "aiohttp coincurve cryptography deltalake duckdb nacl prometheus_client pyarrow rich segno sha3 twisted",
        ),
    ],
)
def test_a_command_imports_nothing_that_it_does_not_need(command: str, unneeded: str, tmp_path: Path) -> None:
    """A server: before it listens, or says that it cannot."""
    program = (
        "import sys\n"
        "async def listen(self, address): sys.exit(0)\n"
        "if 'data' in sys.argv:\n"
        "    from restante.common.listeners import Listeners; Listeners.listen = listen\n"
        "from restante.cli.main import main\n"
        "try: main()\n"
        "finally: print(*sys.modules)"
    )
    modules = run(sys.executable, "-c", program, *command.split(), cwd=tmp_path).stdout.split()
    assert "restante.cli.main" in modules
    assert len(modules) < 500, "they are most of the start-up time of a mailbox server"
    assert [module for module in modules if module.startswith(tuple(unneeded.split()))] == []


def test_the_commands_are_all_those_of_their_modules() -> None:
    together = typer.Typer()
    for module in dict.fromkeys(MODULES.values()):
        together.add_typer(import_module(module).app)
    alone, expected = (typer.main.get_group(group).commands for group in (app, together))
    assert list(alone) == list(expected)
    for name, command in expected.items():
        assert [option.opts for option in alone[name].params] == [option.opts for option in command.params]


def test_config_show_prints_a_file_that_sets_the_same_and_says_where_each_value_comes_from(tmp_path: Path) -> None:
    file, again = tmp_path / "r.toml", tmp_path / "again.toml"
    file.write_text('[serve]\nmotd = "\\"ü\\n"\ntrace = "Infinity\\u007f"\n')
    options = ("--config", str(file), "--prune-after", "inf", "--limit", "commands=2e9")
    text = called("config", "show", *options, RESTANTE_BLUR_USAGE="5").stdout
    lines = re.findall(r"^(?:# )?(\w+) +(?:is|=) (.*?) *(?:# (.*))?$", text, re.MULTILINE)
    names = filter("limits".__ne__, Serve.__struct_fields__)
    assert [name for name, *_ in lines] == [*names, *Limits.__struct_fields__]
    assert {
        ("motd", r'"\"ü\n"', str(file)),
        ("prune_after", "inf", "--prune-after"),
        ("blur_usage", "5", "RESTANTE_BLUR_USAGE"),
        ("listen", '["127.0.0.1:4000"]', "default"),
        ("tls_cert", "not set", ""),
    } <= set(lines)
    again.write_text(text)
    flags = {"prune_after": "inf", "limit": ["commands=2e9"]}
    settings = resolve_settings(SERVE, flags, {"RESTANTE_BLUR_USAGE": "5"}, file)[0]
    assert resolve_settings(SERVE, {}, {}, again)[0] == settings
    shown = json.loads(called("config", "show", "--json", *options).stdout)
    assert [shown[key]["limits"]["commands"] for key in ("settings", "sources")] == [2e9, "--limit commands"]
    assert called("waku", "config", "--json").stdout.startswith('{"settings": {"data": "restante-waku"')


def test_config_show_prints_no_password_of_the_database() -> None:
    for url, printed in (
        ("postgresql://me:secret@db/restante?sslmode=require", "postgresql://me:***@db/restante?sslmode=require"),
        ("postgresql://me:@secret@a:1,b:2/d", "postgresql://me:***@a:1,b:2/d"),
        ("postgresql:///d?host=/run&password=secret&user=me", "postgresql:///d?host=/run&password=***&user=me"),
        ("postgresql://me@db/d?sslpassword=secret", "postgresql://me@db/d?sslpassword=***"),
        ("postgresql://me:a/sec?ret#secret@db/d", "postgresql://me:***@db/d"),
        ("postgresql://me@db:1/d?sslmode=require", "postgresql://me@db:1/d?sslmode=require"),
    ):
        for form in ((), ("--json",)):
            text = called("config", "show", "--database", url, *form).stdout
            assert "secret" not in text
            assert f'"{printed}"' in text


def test_config_check_says_what_serve_would_refuse(tmp_path: Path) -> None:
    for command, own in (("config check", "--trace"), ("waku config --check", "--password-file")):
        assert called(*command.split(), "--data", tmp_path / "data").stdout == "the settings can be used\n"
        for name in ("--data", "--admin-token-file", "--config", own):
            done = called(*command.split(), name, tmp_path / "none" / "file")
            assert (done.returncode, done.stdout) == (2, "")
            assert str(tmp_path / "none" / "file") in done.stderr
    for database in ("mysql://db/restante", "postgresql://[db"):
        done = called("config", "check", "--database", database)
        text = "restante: --database: write postgresql://USER@HOST/DATABASE\n"
        assert (done.returncode, done.stderr) == (2, text)
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_cannot_be_used_is_found_before_the_data_directory_is_made(tmp_path: Path) -> None:
    in_use = "Address already in use: stop the program that listens there, or name another address with {}"
    absent, nowhere = "Cannot assign requested address ({})", "192.0.2.1:4000"  # for documentation: no machine has it
    with socket.create_server(("127.0.0.1", 0)) as taken, bind_unix_socket(str(tmp_path / "s"), "--listen") as path:
        path.listen()
        here = f"127.0.0.1:{taken.getsockname()[1]}"
        for address, flags, code, reason in (
            (here, ("--listen", "--admin"), 75, in_use),
            (f"unix:{tmp_path}/s", ("--listen",), 75, in_use),
            (nowhere, ("--listen", "--admin"), 2, absent),
        ):
            for flag, command in itertools.product(flags, ("serve", "waku serve")):
                options = {"--data": tmp_path / "data", "--listen": "127.0.0.1:0", "--admin": "off"} | {flag: address}
                done = called(*command.split(), *[str(word) for pair in options.items() for word in pair])
                text = f"restante: cannot listen on {address}: {reason.format(flag)}\n"
                assert (done.returncode, done.stderr) == (code, text)
                assert not (tmp_path / "data").exists()


async def test_a_server_is_healthy_is_the_only_one_of_its_data_and_drains_on_sigterm(tmp_path: Path) -> None:
    assert called("status", "--data", tmp_path).returncode == 2
    with held_port() as admin:
        async with serving(tmp_path, options=("--admin", f"127.0.0.1:{admin}")) as server, ClientSession() as http:
            async with bounded("an answer"), http.get(f"http://127.0.0.1:{admin}/healthz") as answer:
                assert (answer.status, await answer.read()) == (200, b"ok\n")
            async with started(tmp_path) as second:
                assert await second.ended() == 75
                assert second.said["stderr"] == (
                    f"restante: another process is using the data directory {tmp_path}:"
                    " stop it, or name another with --data\n"
                )
            numbers = json.loads(called("status", "--data", tmp_path, "--json").stdout)
            assert (numbers["running"], numbers["age"], numbers["mailboxes"]) == (True, None, 0)
            text = called("status", RESTANTE_DATA=str(tmp_path)).stdout
            assert "server        running\nas of         never written\n" in text
            await server.stop()
            events = [json.loads(line)["event"] for line in server.log]
            assert events == ["the dashboard is open", "listening", "draining", "stopped"]
    assert "server        not running\n" in called("status", "--data", tmp_path).stdout


def test_status_counts_what_is_live(tmp_path: Path) -> None:
    with closing(connect(str(tmp_path / "restante.sqlite"))) as database:
        now = time.time()
        sides = '[{"side":"a","added":%f},{"side":"b","added":2e9}]' % (now - 300)
        for key, app in ((1, "x"), (2, "x"), (3, "y")):
            database.execute("INSERT INTO mailboxes VALUES (?, ?, 'm', 1, 0, 0, ?, 0)", (key, app, sides))
        database.execute("INSERT INTO nameplates VALUES (4, 'x', '1', 'm', 0, '[]')")
        database.execute("""INSERT INTO messages VALUES (1, 1, 'a', '"p"', '""', 'null', 1)""")
        database.execute("UPDATE service SET saved = ?, pruned = ?, seconds = 90000", (now - 150, now - 270))
    live = status.read_status(tmp_path)
    assert (live.applications, live.nameplates, live.mailboxes, live.messages, live.sides) == (2, 1, 3, 1, 6)
    assert status.render_status(live) == (
        "server        not running\nas of         2 min ago, the last commit\napplications  2\nnameplates    1\n"
        "mailboxes     3\nmessages      1\nsides         6\noldest        5 min ago\nlast prune    4 min ago\n"
        "service time  25 h"
    )


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_fault_is_logged_by_its_type_and_place_alone(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", output := io.StringIO())
    mailboxes: dict[str, int] = {}
    try:
        mailboxes["mailbox-of-somebody"] += 1
    except KeyError as fault:
        try:
            logs.start_log(form)
            structlog.get_logger().error("a command failed", fault=logs.trace_text(fault))
        finally:
            structlog.reset_defaults()
    line = output.getvalue()
    assert "mailbox-of-somebody" not in line
    assert re.search(r"KeyError < test_cli\.py:\d+", line)


@pytest.mark.parametrize(
    ("terminal", "variables", "colours"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_colours_are_for_a_terminal_that_has_them_and_a_user_who_wants_them(
    terminal: bool, variables: dict[str, str], colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"NO_COLOR": "", "TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", output := io.StringIO())
    monkeypatch.setattr(output, "isatty", lambda: terminal)
    logs.start_log("console")
    structlog.get_logger().info("listening")
    structlog.reset_defaults()
    assert ("\x1b" in output.getvalue()) is colours


async def test_logs_hold_no_addresses_names_or_bodies(tmp_path: Path) -> None:
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
def test_results_that_cannot_be_written_are_one_sentence_or_none_without_a_reader(unbuffered: str, more: str) -> None:
    full = f"restante: cannot write to standard output{more}: No space left on device\n"
    for standard_output, sentence in (("/dev/full", full), ("", "")):
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
        assert (done.returncode, done.stderr) == (1, sentence)


def asked(*arguments: str | Path, **variables: str) -> tuple[int, str, str]:
    done = called("health", *arguments, **variables)
    return done.returncode, done.stdout, done.stderr


@contextmanager
def port_that_says(answer: bytes | None) -> Iterator[str]:
    """Listen on a port; say something to the first who connects, or nothing ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(ConnectionResetError):
                connection.recv(9999)
                if answer is None:
                    connection.recv(1)
                else:
                    connection.sendall(answer)

        serving_it = threading.Thread(target=serve)
        serving_it.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        serving_it.join()


async def test_a_server_that_works_is_healthy_and_ready_however_it_is_named(tmp_path: Path) -> None:
    """The commands of the guide, too."""
    healthy = (0, "ok\n", "")
    token, file = tmp_path / "token", tmp_path / "restante.toml"
    token.write_text("correct-horse-battery-staple")
    with held_port() as port, held_port() as waku, held_port() as relay:
        admin = f"127.0.0.1:{port}"
        file.write_text(f'[serve]\nadmin = "{admin}"\n')
        async with (
            serving(tmp_path / "data", options=("--admin", admin, "--admin-token-file", str(token))),
            serving(tmp_path / "relay", RELAY, ("--admin", f"127.0.0.1:{relay}")),
            node_process(tmp_path / "waku", "--admin", f"127.0.0.1:{waku}"),
        ):
            for name in (admin, f"http://{admin}", f"http://{admin}/", f"localhost:{port}"):
                assert asked(name) == healthy
                assert asked(name, "--ready", "--timeout", "60") == healthy
            assert asked(admin, "--token-file", token) == healthy
            assert asked(RESTANTE_ADMIN=admin) == healthy
            assert asked(RESTANTE_ADMIN=f"*:{port}") == healthy
            assert asked("--config", file) == healthy
            assert asked(RESTANTE_CONFIG=str(file)) == healthy
            for table, admin_port in (("relay", relay), ("waku", waku)):
                file.write_text(f'[{table}]\nadmin = "127.0.0.1:{admin_port}"\n')
                assert asked("--config", file) == asked("--ready", RESTANTE_CONFIG=str(file)) == healthy
            file.write_text(f'[waku]\nadmin = "127.0.0.1:{waku}"\n[relay.limits]\n[serve]\nadmin = "{admin}"\n')
            for relay_admin, answers in (
                (f"127.0.0.1:{relay}", "serve: ok\nrelay: ok\nwaku: ok\n"),
                ("off", "serve: ok\nwaku: ok\n"),
            ):
                assert asked("--config", file, RESTANTE_RELAY_ADMIN=relay_admin) == (0, answers, "")
            file.write_text("")
            assert asked("--config", file, RESTANTE_ADMIN=admin) == healthy
            for command in Document("docs/monitoring.md").lines("health"):
                program, *arguments = command.replace("4011", str(waku)).replace("4012", str(relay)).split()
                assert (program, *asked(*arguments[1:], RESTANTE_ADMIN=admin)) == ("restante", *healthy)


def test_a_server_that_cannot_store_does_not_run_or_is_another_program_is_one_clear_sentence() -> None:
    with port_that_says(b"HTTP/1.0 503 Service Unavailable\r\n\r\nthe disk is nearly full\n") as here:
        assert asked(here, "--ready") == (1, "the disk is nearly full\n", "")
    here = f"127.0.0.1:{nobodys_port()}"
    refused = f"restante: cannot reach http://{here}: Connection refused: is the server running?\n"
    assert asked(here) == (3, "", refused)
    assert asked(RESTANTE_ADMIN=here) == (3, "", refused)
    code, _, error = asked("nowhere.invalid:4010")
    assert (code, error.count("\n")) == (3, 1)
    assert error.startswith("restante: cannot reach http://nowhere.invalid:4010: ")
    for scheme, answer, reason in (
        ("http", b"hello\r\n", " does not speak HTTP"),
        ("http", b"", " closed the connection without an answer"),
        ("http", b"HTTP/1.0 404 Not Found\r\n\r\nno such page\n", "/healthz answered 404: no such page"),
        ("http", b"HTTP/1.0 302 Found\r\nLocation: /\r\n\r\n", "/healthz answered 302: Found"),
        ("http", None, "/healthz did not answer within 0.2 s"),
        ("https", b"HTTP/1.0 400 Bad Request\r\n\r\n", ": TLS failed: the server does not speak it: use http://"),
    ):
        with port_that_says(answer) as here:
            url, timeout = f"{scheme}://{here}", "0.2" if answer is None else "60"
            assert asked(url, "--timeout", timeout) == (3, "", f"restante: {url}{reason}\n")


def test_of_several_servers_in_a_file_the_worst_answer_is_the_exit_code(tmp_path: Path) -> None:
    file, nobody = tmp_path / "restante.toml", f"127.0.0.1:{nobodys_port()}"
    file.write_text("[relay]\n[serve]\n")
    works, full = (b"HTTP/1.0 200 OK\r\n\r\nok\n", b"HTTP/1.0 503 Service Unavailable\r\n\r\nit is full\n")
    with port_that_says(full) as server, port_that_says(works) as relay:
        assert asked("--config", file, RESTANTE_ADMIN=server, RESTANTE_RELAY_ADMIN=relay) == (
            1,
            "serve: it is full\nrelay: ok\n",
            "",
        )
    refused = f"cannot reach http://{nobody}: Connection refused: is the server running?"
    with port_that_says(full) as relay:
        assert asked("--config", file, RESTANTE_ADMIN=nobody, RESTANTE_RELAY_ADMIN=relay) == (
            3,
            "relay: it is full\n",
            f"restante: {refused}\n",
        )
    assert asked("--config", file, RESTANTE_ADMIN=nobody, RESTANTE_RELAY_ADMIN=nobody) == (
        3,
        "",
        f"restante: {refused}; {refused}\n",
    )


def test_an_argument_that_cannot_be_used_is_misuse() -> None:
    for arguments, reason in (
        (("127.0.0.1:1", "--timeout", "nan"), "--timeout: nan is no number of seconds"),
        (("127.0.0.1",), "'127.0.0.1' is not HOST:PORT or a URL"),
        (("127.0.0.1:99999",), "'127.0.0.1:99999' is not HOST:PORT or a URL"),
        (("ftp://127.0.0.1:4010",), "'ftp://127.0.0.1:4010' is not HOST:PORT or a URL"),
        (("http://me:secret@127.0.0.1:4010",), "is not HOST:PORT or a URL"),
        (("127.0.0.1:4010", "--token-file", "/nowhere"), "--token-file /nowhere: No such file or directory"),
    ):
        code, _, error = asked(*arguments)
        assert (code, reason in error, error.count("\n")) == (2, True, 1), error
    code, _, error = asked(RESTANTE_ADMIN="off")
    assert (code, error.startswith("restante: the settings say that the server has no admin port")) == (2, True)


BASH = "COMP_WORDS=({words}); COMP_CWORD={last}; compopt() {{ :; }}; _restante; printf '%s\\n' \"${{COMPREPLY[@]}}\""
"""Calls the function as bash does (bash(1), Programmable Completion)."""


def program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing (Debian: apt install {package})")
    return path


@pytest.mark.thorough
def test_the_files_and_the_guides_are_those_of_the_command_line() -> None:
    """If not: PYTHONPATH=src:tests .venv/bin/python -m support.command_line."""
    generated = files()
    assert generated == {path: path.read_text() for path in {*FOLDER.iterdir(), *generated}}


@pytest.mark.thorough
def test_readers_of_man_pages_have_nothing_to_say_about_ours_but_that_it_has_no_date() -> None:
    done = run(program("groff", "groff"), "-man", "-ww", "-z", FOLDER / MAN_PAGE)
    assert (done.returncode, done.stderr) == (0, "")
    done = run(program("mandoc", "mandoc"), "-Tlint", "-W", "warning", FOLDER / MAN_PAGE)
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []


def test_bash_completes_commands_options_and_values() -> None:
    completions = {
        ("restante", "wa"): ["waku"],
        ("restante", "waku", "re"): ["request"],
        ("restante", "serve", "--permission"): ["--permission", "--permission-bits", "--permission-load"],
        ("restante", "serve", "--permission", "h"): ["hashcash"],
        ("restante", "serve", "--motd", "hi", "--no"): ["--no-list"],
        ("restante", "waku", "request", "enode", "--live"): ["--live"],
        ("restante", "pipeline", "build", "--lake", "nowhere"): [],
    }
    bash = program("bash", "bash")
    for line, expected in completions.items():
        quoted = " ".join(f"'{word}'" for word in line)
        script = f". '{FOLDER / COMPLETION_FILES[Shell.BASH]}'; {BASH.format(words=quoted, last=len(line) - 1)}"
        done = run(bash, "--norc", "-c", script)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(filter(None, done.stdout.splitlines())) == sorted(expected), line


def test_the_commands_of_the_guide_put_each_file_where_it_belongs(tmp_path: Path) -> None:
    commands = Document("docs/install.md").blocks["shell files"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run("sh", "-e", "-c", commands, variables={"HOME": str(tmp_path), "PATH": path})
    assert (done.returncode, done.stderr) == (0, "")
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    shipped = (MAN_PAGE, *COMPLETION_FILES.values())
    assert sorted(written) == sorted((FOLDER / file).read_bytes() for file in shipped)
    assert called("completion", "tcsh").returncode == 2


def test_each_source_overrides_the_one_before(tmp_path: Path) -> None:
    toml, env = tmp_path / "restante.toml", {"RESTANTE_MOTD": "env"}
    toml.write_text('[serve]\nmotd = "file"\nprune_after = 100\nno_list = true\n')
    for flags, variables, file, expected in (
        ({}, {}, None, (None, "default")),
        ({"motd": None}, {}, toml, ("file", str(toml))),
        ({}, env, toml, ("env", "RESTANTE_MOTD")),
        ({"motd": "flag"}, env, toml, ("flag", "--motd")),
    ):
        resolved = resolve_settings(SERVE, flags, variables, file)[1]
        assert [(setting.value, setting.source) for setting in resolved if setting.name == "motd"] == [expected]
    settings, _ = resolve_settings(SERVE, {}, {"RESTANTE_CONFIG": str(toml)}, None)
    assert (settings.motd, settings.prune_after, settings.no_list) == ("file", 100.0, True)
    environment = {"RESTANTE_PRUNE_EVERY": "10", "RESTANTE_NO_LIST": "true", "RESTANTE_BLUR_USAGE": "3600"}
    settings, _ = resolve_settings(SERVE, {}, environment, None)
    assert (settings.prune_every, settings.no_list, settings.blur_usage) == (10.0, True, 3600)


def test_variables_of_other_parts_and_of_kubernetes_are_left_alone() -> None:
    others = {
        "RESTANTE_RELAY_DRAIN",
        "RESTANTE_WAKU_MIN_POW",
        "RESTANTE_WAKU_PASSWORD",
        "RESTANTE_LAKE",
        "RESTANTED",
        "HOME",
    }
    services = {"RESTANTE_SERVICE_HOST", "RESTANTE_SERVICE_PORT_WS", "RESTANTE_PORT", "RESTANTE_PORT_4000_TCP_ADDR"}
    SERVE.check_variables(dict.fromkeys(others | services, "x"))
    WAKU.check_variables({"RESTANTE_MOTDD": "x", "RESTANTE_WAKU_PASSWORD": "x", "RESTANTE_WAKU_SERVICE_HOST": "x"})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[serve]\nmodt = 1\n", r"\[serve\] has no key 'modt': did you mean motd\?"),
        ("[serve]\nconnections = 1\n", "has no key 'connections': did you mean limits.connections\\?"),
        ("[serve.limits]\nconnection = 1\n", r"\[serve.limits\] has no key 'connection': did you mean connections\?"),
        ("[serve]\nxyz = 1\n", "has no key 'xyz': its keys are data, database, listen"),
        ('[serve]\nprune_after = "x"\n', "prune_after: 'x' is not a number from 1 up"),
        ("[other]\n", r"'other' is not known; tables are \[serve\], \[relay\] and \[waku\]"),
        ('motd = "x"\n', "'motd' is not known"),
        ("[serve\n", "is not TOML"),
        (f"[serve]\nmotd = {'[' * 100_000}", "nested too deeply"),
    ],
)
def test_a_bad_file_is_misuse_and_says_where(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(content)
    with pytest.raises(Misuse, match=problem) as caught:
        resolve_settings(SERVE, {}, {}, path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("prune_after", "soon", "'soon' is not a number from 1 up"),
        ("keep_usage", "0", "'0' is not a number over 0 to 36525"),
        ("blur_usage", "1.5", "'1.5' is not a whole number from 0 up"),
        ("permission_bits", -1, "-1 is not a whole number from 1 to "),
        ("frames", "json", "'json' is not binary or text"),
        ("no_list", "perhaps", "'perhaps' is not true or false"),
        ("data", "", "'' is not a name"),
        ("listen", ["bogus"], "'bogus' is not HOST:PORT"),
        ("admin", "xx", "'xx' is not HOST:PORT"),
        ("keep_usage", float("inf"), "inf is not a number over 0"),
        ("motd", 5, "5 is not a string"),
        ("motd", "a\x1b[2Jb", "U\\+001B is a control character; only line breaks and tabs are allowed"),
        ("motd", "a\r\nb", "U\\+000D is a control character"),
        ("motd", "\x9b2J", "U\\+009B is a control character"),
        ("motd", "\udcff", "U\\+DCFF is half a character; write UTF-8"),
        ("signal_error", "\x1b", "U\\+001B is a control character"),
        ("limit", ["connection=5"], "did you mean connections\\?"),
        ("listen", ["127.0.0.1:0", "unix:a\0b"], ".* has a NUL, which no path and no address may have"),
        ("trace", "a\0b", ".* has a NUL"),
    ],
)
def test_an_error_says_what_to_write(name: str, value: object, problem: str) -> None:
    with pytest.raises(Misuse, match=f"^--{name.replace('_', '-')}[^:]*: {problem}"):
        resolve_settings(SERVE, {name: value}, {}, None)


def test_what_clients_show_may_have_lines_tabs_and_any_letters() -> None:
    text = "Zurück um 12:00\n\t日本語 👩\u200d💻 \u202eabc\u202c"
    assert resolve_settings(SERVE, {"motd": text, "signal_error": text}, {}, None)[0].motd == text
    with pytest.raises(Misuse, match=r"^RESTANTE_MOTD: U\+001B is a control character"):
        resolve_settings(SERVE, {}, {"RESTANTE_MOTD": "\x1b"}, None)


@pytest.mark.parametrize(
    ("command", "name", "todo"),
    [
        ("status", "RESTANTE_DATUM", "did you mean RESTANTE_DATA?"),
        ("serve --data /dev/null", "RESTANTE_XYZ", "unset it"),
        ("config show", "RESTANTE_LIMIT_CONNECTION", "did you mean RESTANTE_LIMIT_CONNECTIONS?"),
        ("waku serve --data /dev/null", "RESTANTE_WAKU_TOPIC", "did you mean RESTANTE_WAKU_TOPICS?"),
        ("export usage.sqlite", "RESTANTE_PRUNE_EVRY", "did you mean RESTANTE_PRUNE_EVERY?"),
        ("pipeline sql", "RESTANTE_LAK", "did you mean RESTANTE_LAKE?"),
        ("waku config", "RESTANTE_MOTDD", "did you mean RESTANTE_MOTD?"),
        ("status", "RESTANTE_RELAY_DRAINS", "did you mean RESTANTE_RELAY_DRAIN?"),
    ],
)
def test_every_command_refuses_an_unknown_variable(command: str, name: str, todo: str) -> None:
    done = called(*command.split(), **{name: "x"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"restante: {name} in the environment is not a setting: {todo}\n"


NEWEST = len(migrations())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    data_of(NEWEST, tmp_path / "post")
    assert called("backup", "copy.sqlite", "--data", "post").returncode == 0
    (tmp_path / "odd").mkdir()
    for pipe in ("pipe", f"odd/{FILE}"):
        os.mkfifo(pipe)
    return tmp_path


def data_of(version: int, data: Path) -> Path:
    data.mkdir(mode=0o700)
    thaw(version, data / FILE).close()
    return data


async def test_a_backup_beside_a_running_server_and_a_restore_print_what_they_copied(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "copy.sqlite"
    async with serving(data) as server, Clients() as clients:
        client = await clients.bind(server.url, "app", "a")
        nameplate = (await client.call("allocate"))["nameplate"]
        mailbox = (await client.call("claim", nameplate=nameplate))["mailbox"]
        await client.call("open", mailbox=mailbox)
        await client.call("add", phase="pake", body="00")
        made = restante("backup", file, "--data", data)  # the server is not asked
        assert (made.returncode, made.stderr) == (0, "")
        refused = restante("restore", file, "--data", data)
        assert (refused.returncode, refused.stdout) == (75, "")
        assert refused.stderr.startswith("restante: another process is using the data directory")
        await server.stop()
    lines = dict(line.split(maxsplit=1) for line in made.stdout.replace("usage ", "usage-").splitlines()[3:])
    assert made.stdout.splitlines()[0] == f"file          {file}"
    assert lines.pop("last").startswith("commit   20")
    assert lines == {"nameplates": "1", "mailboxes": "1", "messages": "1", "usage-records": "1"}
    assert last_backup(data) == pytest.approx(time.time(), abs=60)
    restored = restante("restore", file, RESTANTE_DATA=str(tmp_path / "new"))
    assert (restored.returncode, restored.stderr) == (0, "")
    assert restored.stdout.splitlines()[1:] == made.stdout.splitlines()[1:]
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "new", tmp_path / "new" / FILE)]
    assert modes == [0o700, 0o600]
    numbers = json.loads(called("restore", file, "--data", tmp_path / "other", "--json").stdout)
    assert numbers["file"] == str(tmp_path / "other" / FILE)
    assert (numbers["schema"], numbers["bytes"]) == (NEWEST, file.stat().st_size)
    values = [line.split()[-1].replace(",", "") for line in made.stdout.splitlines() if "commit" not in line]
    assert values[1:] == [str(value) for name, value in numbers.items() if name not in {"file", "saved"}]


UNNAMED = (
    *("status", "backup b", "restore b", "import --usage u", "export u", "waku export e.rlp", "waku import e.rlp"),
    *("waku check", "waku backup b", "relay status", "relay backup b", "relay restore b"),
    *("relay import --usage u", "relay export u"),
)

REFUSED = {
    **{f"{command} --data ": "--data is empty: name a directory" for command in UNNAMED},
    "serve --frames both": "--frames: 'both' is not binary or text",
    "config show --config gone.toml": "cannot read gone.toml: No such file or directory (--config)",
    "backup copy.sqlite --data post": "copy.sqlite exists already: name another file, or move it away",
    "backup gone/copy --data post": "there is no directory gone to write copy in",
    "backup post/copy --data post": "post/copy is in the data directory: name a file in another directory",
    "backup post --data post": "post exists already",
    f"backup {'x' * 300} --data post": f"cannot write {'x' * 300}: File name too long",
    "backup new --data gone": "there is no mailbox server's data in gone (--data names another directory)",
    "backup new --data empty": "there is no mailbox server's data in empty (--data names another directory)",
    "backup new --data copy.sqlite": "copy.sqlite is not a directory: name a directory with --data",
    "restore gone --data new": "there is no file gone",
    "migrate --from post --to new": "name a data directory and a URL like postgresql://USER@HOST/DATABASE",
    "migrate --from gone --to postgresql://db/d": "there is no mailbox server's data in gone (--from names another",
    "restore post --data new": "post is a directory: name the file of a backup",
    "restore pipe --data new": "pipe is a pipe or a device: name a file",
    "import --usage pipe --data new": "--usage: pipe is a pipe or a device: name a file",
    "status --data odd": f"odd/{FILE} is a pipe or a device: name a file",
    "backup new --data odd": f"odd/{FILE} is a pipe or a device: name a file",
    "restore copy.sqlite --data post": "post is not empty: move its files away",
    "restore copy.sqlite --data copy.sqlite": "copy.sqlite is not a directory: name a directory with --data",
    "backup /proc/copy --data post": "cannot write /proc/copy: ",
    "restore copy.sqlite --data gone/new": "cannot create gone/new: there is no directory gone: create that first",
    "restore copy.sqlite --data copy.sqlite/new": "cannot create copy.sqlite/new: copy.sqlite is not a directory",
    "restore copy.sqlite --data /proc/new": "cannot use the data directory /proc/new: ",
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_refusal_is_one_sentence_with_exit_code_2_for_misuse(command: str, folder: Path) -> None:
    (folder / "empty").mkdir()
    before = sorted(folder.rglob("*"))
    result = called(*command.split(" "))
    assert (result.returncode, result.stdout) == (1 if "/proc/" in command else 2, "")
    [sentence] = result.stderr.splitlines()
    assert sentence.startswith(f"restante: {REFUSED[command]}")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("command", ["backup new --data post", "restore post/copy --data new", "status --data post"])
def test_another_user_is_told_what_may_not_be_read(command: str, folder: Path) -> None:
    (folder / "post").chmod(0)
    code = (
        "import contextlib, os, sys; from restante.cli.main import main\n"
        "words, sys.argv[1:] = sys.argv[1:], [word.replace('post', 'gone') for word in sys.argv[1:]]\n"
        "with contextlib.suppress(SystemExit): main()\n"  # imports what another user may not be able to import
        "os.getuid() or os.setuid(65534)\n"  # root may read everything
        "sys.argv[1:] = words; main()"
    )
    result = run(sys.executable, "-c", code, *command.split(), cwd=folder)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    sentence = result.stderr.splitlines()[-1]
    assert sentence.startswith("restante: cannot read ")
    assert sentence.endswith(": Permission denied")


COMMANDS = (
    "serve --data post --listen 127.0.0.1:0 --admin off",
    "status --data post",
    "backup copy --data post",
    "restore post/restante.sqlite --data new",
    "export usage.sqlite --data post",
    "import --channel relay.sqlite --data post --merge",
)


def test_data_of_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = data_of(NEWEST, tmp_path / "post")
    alter(data / FILE, f"PRAGMA user_version = {NEWEST + 1}")
    create_channel_db(str(tmp_path / "relay.sqlite")).close()
    before = (data / FILE).read_bytes()
    refused = f"has schema {NEWEST + 1}, this program knows up to {NEWEST}: use the newer restante"
    for command in COMMANDS:
        result = called(*command.split())
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == f"restante: post/{FILE} {refused}\n"
        assert (data / FILE).read_bytes() == before
    assert not [name for name in ("copy", "new", "usage.sqlite") if (tmp_path / name).exists()]


@pytest.mark.parametrize("old", range(1, NEWEST + 1))
def test_every_command_reads_older_data(old: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = data_of(old, tmp_path / "post")
    before = (data / FILE).read_bytes()
    for command in COMMANDS[1:5]:  # those that do not convert it
        result = called(*command.split())
        assert (result.returncode, result.stderr) == (0, ""), command
        assert (data / FILE).read_bytes() == before
    assert json.loads(called("status", "--data", "new", "--json").stdout)["mailboxes"] > 0
