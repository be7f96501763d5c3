"""What the command line says of where an envelope goes: its topic, and for whom it is sealed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from restante.errors import Misuse, PeerError, plain
from restante.waku import keys
from restante.waku.config import read_topic
from restante.waku.sealing import SymmetricKey, topic_of

PASSWORD: Final = "RESTANTE_WAKU_PASSWORD"  # noqa: S105 - the name of a variable


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
    password = _read(password_file) if password_file is not None else environment.get(PASSWORD)
    if password is None:
        raise Misuse(f"say who can open it: --password-file FILE, {PASSWORD} in the environment, or --to KEY")
    _check(password, "--password-file" if password_file is not None else PASSWORD)
    return place, SymmetricKey.from_password(password)


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


def _read(path: Path) -> str:
    """Read a password: the file's text, less the end of its line."""
    try:
        return path.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        words = plain(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise Misuse(f"cannot read {path}: {words} (--password-file)") from error
