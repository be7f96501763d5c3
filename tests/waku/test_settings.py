"""Settings of `restante waku serve`, and times: what cannot mean anything is one sentence that names the flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from restante.cli.times import read_time
from restante.cli.waku_arguments import request_options
from restante.common.errors import Misuse
from restante.common.settings import resolve
from restante.waku.envelope.keys import Key, node_id
from restante.waku.envelope.payload import SymmetricKey
from restante.waku.limits import MIB
from restante.waku.node.main import _history_terms, _password
from restante.waku.passwords import PASSWORD_VARIABLE
from restante.waku.settings import WAKU, WakuServe

ENODE = f"enode://{Key(bytes([1]) * 32).public.hex()}@127.0.0.1:30303"


def resolved(environment: dict[str, str] | None = None, file: Path | None = None, **flags: Any) -> WakuServe:
    return resolve(WAKU, flags, environment or {}, file)[0]


def test_by_default_the_node_listens_on_loopback_and_keeps_thirty_days() -> None:
    settings = resolved()
    assert (settings.listen, settings.admin) == (("127.0.0.1:30303",), "127.0.0.1:4011")
    assert (settings.retention, settings.retention_bytes, settings.topics, settings.peer) == (30.0, None, (), ())
    assert (settings.min_pow, settings.max_ttl) == (2e-6, 7 * 86400)


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "restante.toml"
    file.write_text("[waku]\nmax_peers = 1\nmax_ttl = 1\nmin_pow = 1.0\n[waku.limits]\npool_bytes = 2097152\n")
    environment = {"RESTANTE_WAKU_MAX_TTL": "2", "RESTANTE_WAKU_MIN_POW": "2", "RESTANTE_WAKU_TOPICS": "01020304, ff"}
    with pytest.raises(Misuse, match="'ff' is not a topic"):
        resolved(environment, file)
    environment["RESTANTE_WAKU_TOPICS"] = "01020304,0x05060708"
    settings = resolved(environment, file, min_pow=3.0)
    assert (settings.max_peers, settings.max_ttl, settings.min_pow) == (1, 2, 3.0)
    assert settings.topics == ("01020304", "0x05060708")
    assert settings.limits.pool_bytes == 2 * MIB


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"peer": ["enode://nobody"]}, "--peer: not an enode URL"),
        ({"peer": [ENODE.rpartition(":")[0]]}, "has no port"),
        ({"topics": ["xyz"]}, r"--topics: 'xyz' is not a topic, which has 8 hexadecimal digits"),
        ({"topics": ["0102030405"]}, "--topics"),
        ({"listen": ["nowhere"]}, "--listen: 'nowhere' is not HOST:PORT"),
        ({"admin": "4011"}, "--admin"),
        ({"max_peers": 0}, "--max-peers"),
        ({"max_peers_per_address": 0}, "--max-peers-per-address"),
        ({"min_pow": -1.0}, "--min-pow"),
        ({"max_ttl": 0}, "--max-ttl"),
        ({"retention": -1.0}, "--retention"),
        ({"retention_bytes": 1000}, "--retention-bytes"),
        ({"limit": ["patience=3"]}, r"--limit patience=3: .*address_bytes"),
        ({"limit": ["pool_bytes=much"]}, "--limit pool_bytes"),
        ({"limit": ["packet_bytes=16777216"]}, "--limit packet_bytes"),
        ({"log_format": "poem"}, "--log-format"),
        ({"key": ""}, "--key"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(Misuse, match=words):
        resolved(**flags)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('peer = ["enode://nobody"]', r"restante\.toml: peer: not an enode URL"),
        ("topics = [1]", r"restante\.toml: topics: \[1\] is not a list of strings"),
        ('requests = ["all"]', r"restante\.toml: requests: \['all'\] is not a list of envelope or plain"),
        ('listen = "nowhere"', r"restante\.toml: listen: 'nowhere' is not HOST:PORT"),
        ("retention = nan", r"restante\.toml: retention: nan is not a number from 0 to 36525"),
        ('max_peers = "7"', r"restante\.toml: max_peers: '7' is not a whole number from 1 to 1000000"),
        ("[waku.limits]\npool_bytes = true", r"restante\.toml: limits\.pool_bytes: true is not a whole number from"),
    ],
)
def test_an_error_in_a_file_names_the_file_and_the_key(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "restante.toml"
    file.write_text(f"[waku]\n{line}\n")
    with pytest.raises(Misuse, match=words):
        resolved(file=file)


def test_an_error_in_the_environment_names_the_variable() -> None:
    with pytest.raises(Misuse, match="RESTANTE_WAKU_PEER: not an enode URL: 'x'"):
        resolved({"RESTANTE_WAKU_PEER": "x"})
    with pytest.raises(Misuse, match=r"RESTANTE_WAKU_LIMIT_KNOWN_BYTES: 'x' is not a whole number from 1048576 up$"):
        resolved({"RESTANTE_WAKU_LIMIT_KNOWN_BYTES": "x"})


def test_requests_are_answered_as_the_settings_say(tmp_path: Path) -> None:
    password, own, friend = tmp_path / "password", Key(bytes([2]) * 32), Key(bytes([1]) * 32)
    password.write_text("swordfish\n")
    settings = resolved(
        requests=["envelope"],
        require_signature=True,
        password_file=str(password),
        allow=[ENODE],
        order="desc",
        min_pow=0.5,
    )
    strict = _history_terms(settings, own, _password(settings))
    assert strict.descending
    assert strict.allow == frozenset((node_id(friend.public),))
    demands = strict.demands
    assert (set(map(str, demands.forms)), demands.require_signature, demands.min_pow) == ({"envelope"}, True, 0.5)
    [only] = demands.keys
    assert isinstance(only, SymmetricKey)
    assert only.secret == SymmetricKey.from_password("swordfish").secret


def test_by_default_everybody_is_answered_with_the_oldest_first() -> None:
    own = Key(bytes([2]) * 32)
    usual = _history_terms(resolved(), own, _password(resolved()))
    assert (usual.descending, usual.allow) == (False, None)
    demands = usual.demands
    assert (set(map(str, demands.forms)), demands.require_signature, demands.min_pow) == (
        {"plain", "envelope"},
        False,
        2e-6,
    )
    everybodys, ours = demands.keys
    assert isinstance(everybodys, SymmetricKey)
    assert everybodys.secret == SymmetricKey.from_password("status-offline-inbox").secret
    assert ours is own


def test_the_node_s_public_key_opens_requests_only_if_everybody_may_request() -> None:
    own = Key(bytes([2]) * 32)
    for requests in (["envelope"], ["plain"], ["plain", "envelope"]):
        settings = resolved(requests=requests)
        assert (own in _history_terms(settings, own, _password(settings)).demands.keys) == ("plain" in requests)


@pytest.mark.parametrize("password", ["", "\n"])
def test_an_empty_password_is_refused_and_not_taken_for_none(
    tmp_path: Path, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text(password)
    with pytest.raises(Misuse, match=r"^--password-file: it is empty"):
        _password(resolved(requests=["envelope"], password_file=str(file)))
    with pytest.raises(Misuse, match=r"^--password-file: it is empty"):
        request_options("envelope", file, None, {})
    with pytest.raises(Misuse, match=f"^{PASSWORD_VARIABLE}: it is empty"):
        request_options("envelope", None, None, {PASSWORD_VARIABLE: ""})
    monkeypatch.setenv(PASSWORD_VARIABLE, "")
    with pytest.raises(Misuse, match=f"^{PASSWORD_VARIABLE}: it is empty"):
        _password(resolved())


NOW = 1_795_223_193


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("0", 0),
        ("1700000000", 1_700_000_000),
        ("-1s", NOW - 1),
        ("-90m", NOW - 5400),
        ("-24h", NOW - 86400),
        ("-7d", NOW - 7 * 86400),
        ("2023-11-14T22:13:20", 1_700_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000),
        ("2023-11-14", 1_699_920_000),
    ],
)
def test_every_form_of_a_time_is_read(text: str, expected: int) -> None:
    assert read_time(text, NOW, "--from") == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "24h", "1.5", "-99999999999s", "4294967296", "1969-12-31", "2200-01-01", "٣"]
)
def test_a_text_that_is_no_time_is_misuse(text: str) -> None:
    with pytest.raises(Misuse, match=r"--to: '.*' is not a time"):
        read_time(text, NOW, "--to")
