"""`restante health` against real admin ports."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from support.documents import Document
from support.ports import held_port, nobodys_port
from support.processes import called, serving
from support.waku.processes import node_process

TOKEN = "correct-horse-battery-staple"


@asynccontextmanager
async def mailbox_server(data: Path, *options: str) -> AsyncIterator[str]:
    """Run a mailbox server; gives the address of its admin port."""
    with held_port() as port:
        admin = f"127.0.0.1:{port}"
        async with serving(data, options=("--admin", admin, *options)):
            yield admin


def asked(*words: str | Path, **variables: str) -> tuple[int, str, str]:
    """Run `restante health WORDS...`; gives its exit code, its output and its error."""
    done = called("health", *words, **variables)
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
    (tmp_path / "token").write_text(TOKEN)
    async with mailbox_server(tmp_path / "data", "--admin-token-file", str(tmp_path / "token")) as admin:
        (tmp_path / "restante.toml").write_text(f'[serve]\nadmin = "{admin}"\n')
        port = admin.rpartition(":")[2]
        for words in ((admin,), (f"http://{admin}",), (f"http://{admin}/",), (f"localhost:{port}",)):
            assert asked(*words) == (0, "ok\n", "")
            assert asked(*words, "--ready", "--timeout", "60") == (0, "ok\n", "")
        assert asked(admin, "--token-file", tmp_path / "token") == (0, "ok\n", "")
        assert asked(RESTANTE_ADMIN=admin) == (0, "ok\n", "")
        assert asked(RESTANTE_ADMIN=f"*:{port}") == (0, "ok\n", "")
        assert asked("--config", tmp_path / "restante.toml") == (0, "ok\n", "")
        assert asked(RESTANTE_CONFIG=str(tmp_path / "restante.toml")) == (0, "ok\n", "")


def test_a_server_that_cannot_store_is_healthy_and_not_ready() -> None:
    with port_that_says(b"HTTP/1.0 503 Service Unavailable\r\n\r\nthe disk is nearly full\n") as here:
        assert asked(here, "--ready") == (1, "the disk is nearly full\n", "")


async def test_the_commands_of_the_guide(tmp_path: Path) -> None:
    commands = Document("docs/monitoring.md").lines("health")
    with held_port() as port:
        async with (
            mailbox_server(tmp_path / "mailbox") as admin,
            node_process(tmp_path / "waku", "--admin", f"127.0.0.1:{port}"),
        ):
            for command in commands:
                program, *words = command.replace("127.0.0.1:4011", f"127.0.0.1:{port}").split()
                assert (program, *asked(*words[1:], RESTANTE_ADMIN=admin)) == ("restante", 0, "ok\n", "")


def test_a_server_that_does_not_run_is_one_clear_sentence() -> None:
    here = f"127.0.0.1:{nobodys_port()}"
    said = f"restante: cannot reach http://{here}: Connection refused: is the server running?\n"
    assert asked(here) == (3, "", said)
    assert asked(RESTANTE_ADMIN=here) == (3, "", said)
    code, _, words = asked("nowhere.invalid:4010")
    assert code == 3
    assert words.startswith("restante: cannot reach http://nowhere.invalid:4010: ")
    assert words.count("\n") == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"hello\r\n", " does not speak HTTP"),
        (b"", " closed the connection without an answer"),
        (b"HTTP/1.0 404 Not Found\r\n\r\nno such page\n", "/healthz answered 404: no such page"),
        (b"HTTP/1.0 302 Found\r\nLocation: /\r\n\r\n", "/healthz answered 302: Found"),
        (None, "/healthz did not answer within 0.2 s"),
    ],
)
def test_another_program_at_the_address_is_no_healthy_server(answer: bytes | None, said: str) -> None:
    with port_that_says(answer) as here:
        timeout = "0.2" if answer is None else "60"
        assert asked(here, "--timeout", timeout) == (3, "", f"restante: http://{here}{said}\n")


def test_tls_with_a_server_that_has_none_is_one_clear_sentence() -> None:
    with port_that_says(b"HTTP/1.0 400 Bad Request\r\n\r\n") as here:
        said = f"restante: https://{here}: TLS failed: the server does not speak it: use http://\n"
        assert asked(f"https://{here}") == (3, "", said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("127.0.0.1:1", "--timeout", "nan"), "--timeout: nan is no number of seconds"),
        (("127.0.0.1",), "'127.0.0.1' is not HOST:PORT or a URL"),
        (("127.0.0.1:99999",), "'127.0.0.1:99999' is not HOST:PORT or a URL"),
        (("ftp://127.0.0.1:4010",), "'ftp://127.0.0.1:4010' is not HOST:PORT or a URL"),
        (("http://me:secret@127.0.0.1:4010",), "is not HOST:PORT or a URL"),
        (
            ("127.0.0.1:4010", "--token-file", "/nowhere"),
            "restante: --token-file /nowhere: No such file or directory",
        ),
    ],
)
def test_an_argument_that_cannot_be_used_is_misuse(words: tuple[str, ...], said: str) -> None:
    code, _, error = asked(*words)
    assert code == 2
    assert said in error
    assert error.count("\n") == 1


def test_a_server_without_an_admin_port_cannot_be_asked() -> None:
    code, _, error = asked(RESTANTE_ADMIN="off")
    assert (code, error.startswith("restante: the settings say that the server has no admin port")) == (2, True)
