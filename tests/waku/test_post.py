"""`restante waku post`: what was posted is archived, and who has the key opens it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from restante.cli.waku_arguments import sealed_for
from restante.common.dice import SystemDice
from restante.common.errors import Misuse
from restante.waku import key_file
from restante.waku.archive.sqlite import open_archive
from restante.waku.client.outbound_connection import NodeUnavailableError, connect
from restante.waku.client.post import post as hand_over
from restante.waku.connection.peer_connection import PeerConnection
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import new_key
from restante.waku.envelope.payload import SymmetricKey, open_sealed, topic_of
from restante.waku.node.node import Node
from restante.waku.passwords import PASSWORD_VARIABLE
from restante.waku.protocol.packets import Response
from support.bounds import BOUND, bounded
from support.processes import RESTANTE, called, run
from support.rows import every
from support.waku.inside import inside
from support.waku.processes import serving


def post(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Post from this process."""
    return called("waku", "post", *arguments, **environment)


def post_in_a_process(*arguments: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return run(*RESTANTE, "waku", "post", *arguments, stdin=text, variables=environment)


def archived(data: Path) -> list[Envelope]:
    async def read() -> list[Envelope]:
        archive = open_archive(data)
        try:
            return [each.envelope() for each in await archive.after(0, 100)]
        finally:
            await archive.close()

    return asyncio.run(read())


def test_a_posted_text_is_archived_byte_for_byte_and_opened_with_the_key(tmp_path: Path) -> None:
    bob, alice = new_key(SystemDice()), key_file.load_or_make(tmp_path / "alice")
    topic = "01020304"
    with serving(tmp_path / "data") as enode:
        posted = [
            post(enode, "--channel", "status", "to the chat"),
            post_in_a_process(enode, "--topic", topic, text="by password", **{PASSWORD_VARIABLE: "open sesame"}),
            post(enode, "--topic", topic, "--to", bob.public.hex(), "--sign", str(tmp_path / "alice"), "to Bob"),
            post_in_a_process(enode, "--channel", "x", os.fsdecode(b"a\xff")),
        ]
    assert [each.returncode for each in posted] == [0, 0, 0, 0], posted
    envelopes = archived(tmp_path / "data")
    assert [each.hash.hex() for each in envelopes] == [each.stdout.strip() for each in posted]
    chat, secret, letter, as_the_shell_gave_it = envelopes
    assert chat.topic == topic_of("status")
    assert open_sealed(chat.data, SymmetricKey.from_password("status")).payload == b"to the chat"
    assert open_sealed(secret.data, SymmetricKey.from_password("open sesame")).payload == b"by password"
    opened = open_sealed(letter.data, bob)
    assert (opened.payload, opened.signer) == (b"to Bob", alice.public)
    assert open_sealed(as_the_shell_gave_it.data, SymmetricKey.from_password("x")).payload == b"a\xff"


def test_a_failed_post_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as enode:
        long = post(enode, "--channel", "x", "--ttl", "9999999", "text")
        assert (long.returncode, long.stderr) == (
            1,
            "restante: the node refused the envelope: the ttl is longer than this node takes\n",
        )
        port = enode.rpartition(":")[2]
        stranger = f"enode://{new_key(SystemDice()).public.hex()}@127.0.0.1:{port}"
        wrong = post(stranger, "--channel", "x", "text")
        assert wrong.returncode == 1
        assert wrong.stderr.startswith("restante: the node disconnected: ")
    gone = post(enode, "--channel", "x", "text")
    assert (gone.returncode, gone.stderr) == (
        1,
        f"restante: cannot connect to 127.0.0.1:{port}: Connection refused\n",
    )
    nowhere = post("enode://x", "--channel", "x", "text")
    assert nowhere.returncode == 2
    assert archived(tmp_path / "data") == []


class Unconfirming(Node):
    """Promises confirmations, and gives none."""

    def _confirm(self, connection: PeerConnection, response: Response) -> None:
        pass


async def test_a_node_that_never_confirms_is_waited_for_until_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It goes as soon as the time is over: for its goodbye to be heard it would wait longer than the test.
    monkeypatch.setattr("restante.waku.client.post.connect", partial(connect, seconds=10 * BOUND))
    async with inside(tmp_path, node_type=Unconfirming) as here, bounded("the timeout"):
        with pytest.raises(NodeUnavailableError, match=r"did not confirm the envelope within 0\.1 s; it may have it"):
            await hand_over(here.enode, b"text", topic=b"abcd", to=SymmetricKey(bytes(32)), timeout=0.1)
        await here.until("the loss", lambda: not here.node.connections)
        assert here.node.counts == {"lost: client_quitting": 1}


def test_an_invalid_time_to_live_is_reported_in_one_sentence() -> None:
    for ttl in ("0", "soon"):
        refused = post("enode://x", "--channel", "x", "--ttl", ttl, "text")
        assert (refused.returncode, refused.stderr) == (
            2,
            f"restante: --ttl: '{ttl}' is not a whole number from 1 to 2147483648\n",
        )


def test_an_error_of_the_signing_key_names_its_flag(tmp_path: Path) -> None:
    refused = post(f"enode://{KEY}@127.0.0.1:1", "--channel", "x", "--sign", str(tmp_path / "none"), "text")
    assert (refused.returncode, refused.stderr) == (
        2,
        f"restante: cannot read the key file {tmp_path / 'none'}: No such file or directory (--sign)\n",
    )


@pytest.mark.parametrize("password", ["", "\n"])
def test_a_password_that_is_empty_is_refused(tmp_path: Path, password: str) -> None:
    (tmp_path / "password").write_text(password)
    with pytest.raises(Misuse, match="--password-file: it is empty"):
        sealed_for(None, "01020304", tmp_path / "password", None, {})
    with pytest.raises(Misuse, match=f"^{PASSWORD_VARIABLE}: it is empty"):
        sealed_for(None, "01020304", None, None, {PASSWORD_VARIABLE: ""})
    with pytest.raises(Misuse, match="--channel: it is empty"):
        sealed_for("", None, None, None, {})


def test_a_channel_name_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    wrong = os.fsdecode(b"a\xff")
    with pytest.raises(Misuse):
        sealed_for(wrong, None, None, None, {})
    with pytest.raises(Misuse):
        sealed_for(None, "01020304", None, None, {PASSWORD_VARIABLE: wrong})
    (tmp_path / "password").write_bytes(b"a\xff")
    with pytest.raises(Misuse, match="it is not UTF-8"):
        sealed_for(None, "01020304", tmp_path / "password", None, {})


KEY = new_key(SystemDice()).public.hex()


@every(
    ("given", "words"),
    [
        (("x", "01020304", None, None), "--channel gives the topic and the key"),
        ((None, None, None, None), "name where to post"),
        ((None, "01020304", None, None), "name who can open it"),
        ((None, "010203", None, KEY), "not a topic, which has 8 hexadecimal digits"),
        ((None, "01020304", Path("none"), KEY), "cannot be combined"),
        ((None, "01020304", Path("none"), None), "cannot read none: No such file"),
        ((None, "01020304", None, "abc"), "not a public key"),
        ((None, "01020304", None, "00" * 64), "not a public key"),
    ],
)
def test_post_requires_exactly_one_destination_and_one_key(
    given: tuple[str | None, str | None, Path | None, str | None], words: str
) -> None:
    with pytest.raises(Misuse, match=words):
        sealed_for(*given, {})


def test_a_password_comes_from_a_file_or_the_environment_without_the_end_of_its_line(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sesame\n")
    expected = SymmetricKey.from_password("open sesame").secret
    for file, environment in (
        (tmp_path / "password", {PASSWORD_VARIABLE: "other"}),
        (None, {PASSWORD_VARIABLE: "open sesame"}),
    ):
        topic, key = sealed_for(None, "0x01020304", file, None, environment)
        assert isinstance(key, SymmetricKey)
        assert (topic, key.secret) == (b"\1\2\3\4", expected)


def test_a_public_key_may_have_the_prefix_04() -> None:
    assert sealed_for(None, "01020304", None, f"0x04{KEY}", {}) == (b"\1\2\3\4", bytes.fromhex(KEY))
