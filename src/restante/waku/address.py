"""What the command line says of where an envelope goes, or is: its topic, for whom it is sealed, who is asked how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from restante.errors import Misuse, PeerError, plain
from restante.waku import keyfile, keys
from restante.waku.ask import How
from restante.waku.config import read_topic
from restante.waku.keys import Key
from restante.waku.sealing import SymmetricKey, topic_of

PASSWORD: Final = "RESTANTE_WAKU_PASSWORD"  # noqa: S105 - the name of a variable

OFFLINE_INBOX: Final = "status-offline-inbox"
"""The password of every Mailserver that was not told another (status-go params/config.go:68-146)."""


def sealed_for(
    channel: str | None, topic: str | None, password_file: Path | None, to: str | None, environment: Mapping[str, str]
) -> tuple[bytes, SymmetricKey | bytes]:
    """Give the topic and the key. Raises Misuse where that is nobody's, or two people's."""
    if channel is not None:
        if topic or password_file or to:
            raise Misuse("--channel stands for a topic and a key: leave --topic, --password-file and --to out")
        _check(channel, "--channel")
        return topic_of(channel), SymmetricKey.from_password(channel)
    if topic is None:
        raise Misuse("say where it goes: --channel NAME, or --topic TOPIC and a key")
    place = read_topic(topic, "--topic")
    if to is not None and password_file is not None:
        raise Misuse("seal it with a password or for a public key, not both: --password-file or --to")
    if to is not None:
        return place, _public(to)
    password = read_password(password_file, environment)
    if password is None:
        raise Misuse(f"say who can open it: --password-file FILE, {PASSWORD} in the environment, or --to KEY")
    return place, SymmetricKey.from_password(password)


def asked_for(channel: str | None, topics: Sequence[str]) -> tuple[frozenset[bytes], SymmetricKey | None]:
    """Give the topics to ask for, and what opens their envelopes if that is known. Raises Misuse."""
    found = frozenset(read_topic(each, "--topic") for each in topics)
    if channel is not None:
        return found | {topic_of(channel)}, SymmetricKey.from_password(channel)
    if not found:
        raise Misuse("say what to ask for: --channel NAME, or --topic TOPIC")
    return found, None


def opening(
    chat: SymmetricKey | None, password_file: Path | None, key_file: Path | None
) -> tuple[SymmetricKey | Key, ...]:
    """Give the keys that open what was asked for. Raises Misuse."""
    keys: list[SymmetricKey | Key] = [] if chat is None else [chat]
    if password_file is not None:
        keys.append(SymmetricKey.from_password(_password_in(password_file, "--open-password")))
    if key_file is not None:
        keys.append(keyfile.load(key_file, "--open-key"))
    return tuple(keys)


def how_to_ask(form: str, password_file: Path | None, key_file: Path | None, environment: Mapping[str, str]) -> How:
    """Give how to write requests. Raises Misuse."""
    key = keyfile.load(key_file) if key_file is not None else None
    if form == "plain":
        if password_file is not None:
            raise Misuse("a plain request is for every Mailserver, and has no password: leave --password-file out")
        return How(form="plain", key=key)
    if form != "envelope":
        raise Misuse(f"--form is envelope or plain, not '{form}'")
    password = read_password(password_file, environment) or OFFLINE_INBOX
    return How(to=SymmetricKey.from_password(password), key=key)


def _check(password: str, flag: str) -> None:
    """Refuse a password that everybody knows."""
    if not password:
        raise Misuse(f"{flag}: it is empty, so that everybody could open what is sealed with it")


def _public(text: str) -> bytes:
    try:
        found = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        found = b""
    found = found[1:] if len(found) == keys.PUBLIC + 1 else found  # others write 04 in front
    try:
        if len(found) == keys.PUBLIC:
            keys.check(found)
            return found
    except PeerError:
        pass
    raise Misuse(f"--to: '{text}' is no public key; it has 128 hexadecimal digits")


def read_password(path: Path | str | None, environment: Mapping[str, str]) -> str | None:
    """Read a password, from its file or the variable; None where neither is given.

    Raises Misuse, also for an empty one: it is a secret that did not arrive, and would be taken for none.
    """
    if path is not None:
        return _password_in(path, "--password-file")
    password = environment.get(PASSWORD)
    if password is not None:
        _check(password, PASSWORD)
    return password


def _password_in(path: Path | str, flag: str) -> str:
    """Read a file's text, less the end of its line."""
    try:
        password = Path(path).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        words = plain(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise Misuse(f"cannot read {path}: {words} ({flag})") from error
    _check(password, flag)
    return password
