"""Texts between two programs, and peers that break the rules of a transfer."""

from __future__ import annotations

import pytest

from client.live import meet, wormhole
from client.virtual import Network
from restante.cli.code_prompt import Completer
from restante.client import PeerMessageError, ServerGoneError, TransferError, receive_text, send_text
from restante.client.protocol.uri import TransferUri, rendezvous_of
from restante.common.texts import visible
from support.bounds import bounded

NO_MESSAGE = "not a message of a transfer"


@pytest.mark.parametrize(
    ("role", "said", "error", "words"),
    [
        *(("receiver", said, PeerMessageError, NO_MESSAGE) for said in (b"not JSON", b'{"offer": {"message": 5}}')),
        ("receiver", b'{"offer": {}}', TransferError, "a file or a directory"),
        (
            "receiver",
            b'{"offer": {"file": {"filename": "x", "filesize": 3}}}',
            TransferError,
            "a file or a directory",
        ),
        ("receiver", b'{"error": "no time"}', TransferError, "the other side gave up: no time"),
        ("sender", b"not JSON", PeerMessageError, NO_MESSAGE),
        ("sender", b'{"offer": {"message": "mine"}}', PeerMessageError, "the other side sends, too"),
        ("sender", b'{"answer": {"message_ack": "not now"}}', TransferError, "refused the text: 'not now'"),
        ("sender", b'{"answer": {}}', TransferError, "refused the text"),
        ("sender", b'{"error": "no paper"}', TransferError, "gave up: no paper"),
    ],
)
async def test_a_side_is_told_what_the_other_did_wrong(
    network: Network, role: str, said: bytes, error: type[Exception], words: str
) -> None:
    taken: list[str] = []
    async with wormhole() as ours, wormhole() as theirs:
        await meet(ours, theirs)
        await theirs.send(b'{"transit": {"abilities-v1": []}}')  # is of files
        await theirs.send(said)
        async with bounded("an error"):
            with pytest.raises(error, match=words):
                await (receive_text(ours, taken.append) if role == "receiver" else send_text(ours, "text"))
    assert taken == []


# ── on a terminal ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nof two lines, é 日本 👩‍🚀", None),
        ("\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
        ("a\rb\x00\x7f\x9b", r"a\rb\x00\x7f\x9b"),
        ("\u202etxt.exe\u2066", r"\u202etxt.exe\u2066"),
    ],
)
def test_a_text_cannot_steer_a_terminal(text: str, shown: str | None) -> None:
    assert visible(text) == (text if shown is None else shown)


def completed(completer: Completer, typed: str) -> list[str]:
    found: list[str] = []
    while (each := completer.complete(typed, len(found))) is not None:
        found.append(each)
    return found


def test_the_tab_key_completes_nameplates_and_words() -> None:
    asked: list[int] = []

    def nameplates() -> list[str]:
        asked.append(1)
        return ["12", "1", "7"]

    completer = Completer(nameplates, 2)
    assert completed(completer, "1") == ["1-", "12-"]
    assert completed(completer, "") == ["1-", "7-", "12-"]
    assert completed(completer, "7-pur") == []
    assert completed(completer, "7-sardo") == ["7-sardonic-"]
    assert completed(completer, "7-sardonic-sau") == []
    assert completed(completer, "7-sardonic-puppy") == ["7-sardonic-puppy"]
    assert asked == [1]


@pytest.mark.parametrize("error", [ServerGoneError("gone"), TimeoutError()])
def test_without_a_server_the_tab_key_completes_no_nameplate(error: Exception) -> None:
    def nameplates() -> list[str]:
        raise error

    assert completed(Completer(nameplates, 2), "1") == []


# ── the server of a URI ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("server", "uri"),
    [
        ("wss://relay.magic-wormhole.io/v1", "wormhole-transfer:7-a-b"),
        ("ws://127.0.0.1:4000/v1", "wormhole-transfer:7-a-b?rendezvous=ws%3A%2F%2F127.0.0.1%3A4000"),
        ("wss://example.com/box/v1", "wormhole-transfer:7-a-b?rendezvous=wss%3A%2F%2Fexample.com%2Fbox"),
    ],
)
def test_a_uri_names_the_server_without_its_version(server: str, uri: str) -> None:
    made = TransferUri("7-a-b", rendezvous_of(server) or "")
    assert (str(made), made.server) == (uri, server)
