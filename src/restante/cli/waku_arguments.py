"""Arguments of Waku commands: topics, keys to seal and open with, and the form of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from restante.common.errors import Misuse, PeerError
from restante.waku.client.fetch import RequestOptions
from restante.waku.envelope import keys
from restante.waku.envelope.keys import Key
from restante.waku.envelope.payload import SymmetricKey, topic_of
from restante.waku.key_file import load as load_key
from restante.waku.passwords import OFFLINE_INBOX, PASSWORD_VARIABLE, check_password, password_in, read_password
from restante.waku.settings import read_topic


def sealed_for(
    channel: str | None, topic: str | None, password_file: Path | None, to: str | None, environment: Mapping[str, str]
) -> tuple[bytes, SymmetricKey | bytes]:
    """Return the topic and the key to seal with. Raises Misuse unless the arguments name exactly one key."""
    if channel is not None:
        if topic or password_file or to:
            raise Misuse("--channel gives the topic and the key: leave --topic, --password-file and --to out")
        check_password(channel, "--channel")
        return topic_of(channel), SymmetricKey.from_password(channel)
    if topic is None:
        raise Misuse("name where to post: --channel NAME, or --topic TOPIC and a key")
    place = read_topic(topic, "--topic")
    if to is not None and password_file is not None:
        raise Misuse("--password-file and --to cannot be combined: leave one of them out")
    if to is not None:
        return place, _public(to)
    password = read_password(password_file, environment)
    if password is None:
        raise Misuse(
            f"name who can open it: --password-file FILE, {PASSWORD_VARIABLE} in the environment, or --to KEY"
        )
    return place, SymmetricKey.from_password(password)


def requested_topics(channel: str | None, topics: Sequence[str]) -> tuple[frozenset[bytes], SymmetricKey | None]:
    """Return the topics to request, and the key that opens their envelopes if it is known. Raises Misuse."""
    found = frozenset(read_topic(each, "--topic") for each in topics)
    if channel is not None:
        return found | {topic_of(channel)}, SymmetricKey.from_password(channel)
    if not found:
        raise Misuse("name what to fetch: --channel NAME, or --topic TOPIC")
    return found, None


def opening(
    chat: SymmetricKey | None, password_file: Path | None, key_file: Path | None
) -> tuple[SymmetricKey | Key, ...]:
    """Return the keys that open the requested envelopes. Raises Misuse."""
    keys: list[SymmetricKey | Key] = [] if chat is None else [chat]
    if password_file is not None:
        keys.append(SymmetricKey.from_password(password_in(password_file, "--open-password")))
    if key_file is not None:
        keys.append(load_key(key_file, "--open-key"))
    return tuple(keys)


def request_options(
    form: str, password_file: Path | None, key_file: Path | None, environment: Mapping[str, str]
) -> RequestOptions:
    """Return the form, password and key of requests. Raises Misuse."""
    key = load_key(key_file) if key_file is not None else None
    if form == "plain":
        if password_file is not None:
            raise Misuse("a plain request has no password: leave --password-file out, or use --form envelope")
        return RequestOptions(form="plain", key=key)
    if form != "envelope":
        raise Misuse(f"--form: '{form}' is not envelope or plain")
    password = read_password(password_file, environment) or OFFLINE_INBOX
    return RequestOptions(to=SymmetricKey.from_password(password), key=key)


def _public(text: str) -> bytes:
    try:
        found = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        found = b""
    found = found[1:] if len(found) == keys.PUBLIC_BYTES + 1 else found  # other programs write 04 in front
    try:
        if len(found) == keys.PUBLIC_BYTES:
            keys.check(found)
            return found
    except PeerError:
        pass
    raise Misuse(f"--to: '{text}' is not a public key, which has 128 hexadecimal digits")
