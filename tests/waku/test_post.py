"""`restante waku post`: what was posted is archived, and who has the key opens it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from restante.cli.waku_arguments import sealed_for
from restante.common.dice import SystemDice
from restante.common.errors import Misuse
from restante.waku import key_file
from restante.waku.envelope.keys import new_key
from restante.waku.envelope.payload import SymmetricKey, open_sealed, topic_of
from restante.waku.passwords import PASSWORD_VARIABLE
from support.processes import RESTANTE, called, run
from support.waku.fake_node import listening_beside
from support.waku.mailservers import Honest


def post(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Post from this process."""
    return called("waku", "post", *arguments, **environment)


POST = (*RESTANTE, "waku", "post")


def test_a_posted_text_arrives_byte_for_byte_and_is_opened_with_the_key(tmp_path: Path) -> None:
    bob, alice = new_key(SystemDice()), key_file.load_or_make(tmp_path / "alice")
    mailserver = Honest([])
    with listening_beside(mailserver) as (_, enode):
        to, node = ("--topic", "01020304"), str(enode)
        posted = [
            post(node, "--channel", "status", "to the chat"),
            run(*POST, node, *to, stdin="by password", variables={PASSWORD_VARIABLE: "open sesame"}),
            post(node, *to, "--to", bob.public.hex(), "--sign", str(tmp_path / "alice"), "to Bob"),
            post(node, "--channel", "x", os.fsdecode(b"a\xff")),
        ]
    assert [result.returncode for result in posted] == [0, 0, 0, 0], posted
    assert [envelope.hash.hex() for envelope in mailserver.envelopes] == [result.stdout.strip() for result in posted]
    chat, secret, letter, as_the_shell_gave_it = mailserver.envelopes
    assert chat.topic == topic_of("status")
    assert open_sealed(chat.data, SymmetricKey.from_password("status")).payload == b"to the chat"
    assert open_sealed(secret.data, SymmetricKey.from_password("open sesame")).payload == b"by password"
    opened = open_sealed(letter.data, bob)
    assert (opened.payload, opened.signer) == (b"to Bob", alice.public)
    assert open_sealed(as_the_shell_gave_it.data, SymmetricKey.from_password("x")).payload == b"a\xff"


def test_a_failed_post_is_reported_in_one_sentence() -> None:
    with listening_beside(refuses="full") as (_, enode):
        port = enode.port
        refused = post(str(enode), "--channel", "x", "text")
        assert (refused.returncode, refused.stderr) == (1, "restante: the node refused the envelope: full\n")
        wrong = post(f"enode://{KEY}@127.0.0.1:{port}", "--channel", "x", "text")
        assert wrong.returncode == 1
        assert wrong.stderr.startswith("restante: the node disconnected: ")
    with listening_beside(says_so=False, confirms=False) as (_, other):
        unsure = post(str(other), "--channel", "x", "text")
        assert (unsure.returncode, "does not confirm envelopes" in unsure.stderr) == (0, True)
    gone = post(str(enode), "--channel", "x", "text")
    assert (gone.returncode, gone.stderr) == (
        1,
        f"restante: cannot connect to 127.0.0.1:{port}: Connection refused\n",
    )
    assert post("enode://x", "--channel", "x", "text").returncode == 2


def test_an_error_of_a_flag_names_it(tmp_path: Path) -> None:
    for ttl in ("0", "soon"):
        refused = post("enode://x", "--channel", "x", "--ttl", ttl, "text")
        assert (refused.returncode, refused.stderr) == (
            2,
            f"restante: --ttl: '{ttl}' is not a whole number from 1 to 2147483648\n",
        )
    refused = post(f"enode://{KEY}@127.0.0.1:1", "--channel", "x", "--sign", str(tmp_path / "none"), "text")
    assert (refused.returncode, refused.stderr) == (
        2,
        f"restante: cannot read the key file {tmp_path / 'none'}: No such file or directory (--sign)\n",
    )


def test_a_password_or_channel_that_is_empty_or_no_utf_8_is_refused(tmp_path: Path) -> None:
    file, wrong = tmp_path / "password", os.fsdecode(b"a\xff")
    for content, words in (
        (b"", "--password-file: it is empty"),
        (b"\n", "it is empty"),
        (b"a\xff", "it is not UTF-8"),
    ):
        file.write_bytes(content)
        with pytest.raises(Misuse, match=words):
            sealed_for(None, "01020304", file, None, {})
    for value, words in (("", f"^{PASSWORD_VARIABLE}: it is empty"), (wrong, "UTF-8")):
        with pytest.raises(Misuse, match=words):
            sealed_for(None, "01020304", None, None, {PASSWORD_VARIABLE: value})
    for channel, words in (("", "--channel: it is empty"), (wrong, "UTF-8")):
        with pytest.raises(Misuse, match=words):
            sealed_for(channel, None, None, None, {})


KEY = new_key(SystemDice()).public.hex()


@pytest.mark.parametrize(
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
