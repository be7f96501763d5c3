"""Arguments of Waku commands: topics, keys to seal and open with, the form of requests, and their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from restante.common.errors import Misuse, PeerError
from restante.common.settings import convert, parse_limits
from restante.waku.client.fetch import RequestOptions
from restante.waku.client.options import ConnectionOptions
from restante.waku.envelope import keys
from restante.waku.envelope.keys import Key
from restante.waku.envelope.payload import SymmetricKey, topic_of
from restante.waku.key_file import load_key
from restante.waku.passwords import (
    OFFLINE_INBOX,
    PASSWORD_VARIABLE,
    check_password,
    read_password,
    read_password_file,
)
from restante.waku.settings import read_topic

LIMITS: Final = {
    "pages": "max_pages",
    "envelopes": "max_envelopes",
    "bytes": "max_bytes",
    "seconds": "max_seconds",
    "size": "max_envelope_bytes",
}
"""The names of `--limit`, and their options."""


def topic_and_seal_key(
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
    parsed_topic = read_topic(topic, "--topic")
    if to is not None and password_file is not None:
        raise Misuse("--password-file and --to cannot be combined: leave one of them out")
    if to is not None:
        return parsed_topic, _parse_public_key(to)
    password = read_password(password_file, environment)
    if password is None:
        raise Misuse(
            f"name who can open it: --password-file FILE, {PASSWORD_VARIABLE} in the environment, or --to KEY"
        )
    return parsed_topic, SymmetricKey.from_password(password)


def requested_topics(channel: str | None, topics: Sequence[str]) -> tuple[frozenset[bytes], SymmetricKey | None]:
    """Return the topics to request, and the key that opens their envelopes if it is known. Raises Misuse."""
    parsed_topics = frozenset(read_topic(topic, "--topic") for topic in topics)
    if channel is not None:
        return parsed_topics | {topic_of(channel)}, SymmetricKey.from_password(channel)
    if not parsed_topics:
        raise Misuse("name what to fetch: --channel NAME, or --topic TOPIC")
    return parsed_topics, None


def opening_keys(
    channel_key: SymmetricKey | None, password_file: Path | None, key_file: Path | None
) -> tuple[SymmetricKey | Key, ...]:
    """Return the keys that open the requested envelopes. Raises Misuse."""
    keys: list[SymmetricKey | Key] = [] if channel_key is None else [channel_key]
    if password_file is not None:
        keys.append(SymmetricKey.from_password(read_password_file(password_file, "--open-password")))
    if key_file is not None:
        keys.append(load_key(key_file, "--open-key"))
    return tuple(keys)


def request_options(
    form: str,
    password_file: Path | None,
    key_file: Path | None,
    environment: Mapping[str, str],
    limits: Sequence[str] = (),
) -> RequestOptions:
    """Return the form, password, key and limits of requests. `limits` are each NAME=NUMBER. Raises Misuse."""
    key = load_key(key_file) if key_file is not None else None
    connection = _parse_limits(limits)
    if form == "plain":
        if password_file is not None:
            raise Misuse("a plain request has no password: leave --password-file out, or use --form envelope")
        return RequestOptions(form="plain", key=key, connection=connection)
    if form != "envelope":
        raise Misuse(f"--form: '{form}' is not envelope or plain")
    password = read_password(password_file, environment) or OFFLINE_INBOX
    return RequestOptions(to=SymmetricKey.from_password(password), key=key, connection=connection)


def _parse_limits(limits: Sequence[str]) -> ConnectionOptions:
    types = {field.name: field.type for field in msgspec.structs.fields(ConnectionOptions)}
    fields = {LIMITS[name]: (name, text) for name, text in parse_limits(LIMITS, limits)}
    values = {field: convert(text, types[field], f"--limit {name}") for field, (name, text) in fields.items()}
    return ConnectionOptions(**values)


def _parse_public_key(text: str) -> bytes:
    try:
        public = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        public = b""
    public = public[1:] if len(public) == keys.PUBLIC_BYTES + 1 else public  # other programs write 04 in front
    try:
        if len(public) == keys.PUBLIC_BYTES:
            keys.check(public)
            return public
    except PeerError:
        pass
    raise Misuse(f"--to: '{text}' is not a public key, which has 128 hexadecimal digits")
