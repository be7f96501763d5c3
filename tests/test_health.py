"""`restante health` against real admin ports."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.documents import Document
from support.ports import held_port, nobodys_port
from support.processes import called, serving
from support.waku.processes import node_process

TOKEN = "correct-horse-battery-staple"


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
    """The commands of the guide, too."""
    healthy = (0, "ok\n", "")
    token, file = tmp_path / "token", tmp_path / "restante.toml"
    token.write_text(TOKEN)
    with held_port() as port, held_port() as waku:
        admin = f"127.0.0.1:{port}"
        file.write_text(f'[serve]\nadmin = "{admin}"\n')
        async with (
            serving(tmp_path / "data", options=("--admin", admin, "--admin-token-file", str(token))),
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
            for command in Document("docs/monitoring.md").lines("health"):
                program, *words = command.replace("127.0.0.1:4011", f"127.0.0.1:{waku}").split()
                assert (program, *asked(*words[1:], RESTANTE_ADMIN=admin)) == ("restante", *healthy)


def test_a_server_that_cannot_store_is_healthy_and_not_ready() -> None:
    with port_that_says(b"HTTP/1.0 503 Service Unavailable\r\n\r\nthe disk is nearly full\n") as here:
        assert asked(here, "--ready") == (1, "the disk is nearly full\n", "")


def test_a_server_that_does_not_run_or_another_program_is_one_clear_sentence() -> None:
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


def test_an_argument_that_cannot_be_used_is_misuse() -> None:
    for words, reason in (
        (("127.0.0.1:1", "--timeout", "nan"), "--timeout: nan is no number of seconds"),
        (("127.0.0.1",), "'127.0.0.1' is not HOST:PORT or a URL"),
        (("127.0.0.1:99999",), "'127.0.0.1:99999' is not HOST:PORT or a URL"),
        (("ftp://127.0.0.1:4010",), "'ftp://127.0.0.1:4010' is not HOST:PORT or a URL"),
        (("http://me:secret@127.0.0.1:4010",), "is not HOST:PORT or a URL"),
        (("127.0.0.1:4010", "--token-file", "/nowhere"), "--token-file /nowhere: No such file or directory"),
    ):
        code, _, error = asked(*words)
        assert (code, reason in error, error.count("\n")) == (2, True, 1), error
    code, _, error = asked(RESTANTE_ADMIN="off")
    assert (code, error.startswith("restante: the settings say that the server has no admin port")) == (2, True)
