"""--admin-host: further names by which requests may reach the admin port, and nobody else's names."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from restante.common.admin_access import known_host, same_origin
from restante.common.errors import Misuse
from restante.common.settings import resolve
from restante.mailbox.settings import SERVE
from restante.waku.settings import WAKU
from support.ports import held_port
from support.processes import serving
from support.waku.processes import node_process

TOKEN = "a-token-of-a-test"
NAMES = ("--admin-host", "Relay.example.org", "--admin-host", "prometheus-target")

ACCEPTED = (
    "relay.example.org",
    "RELAY.example.org",
    "relay.example.org:443",
    "prometheus-target:4010",
    *("127.0.0.1", "127.0.0.1:4010", "[::1]", "[::1]:4010", "LocalHost", "localhost:1", "10.0.0.1"),
)
REFUSED = (
    "evil.example",
    "example.org",
    "a.relay.example.org",
    "relay.example.org.evil.example",
    "relay.example.org.",
    "relay.example.org:",
    "relay.example.org:x",
    "relay.example.org@evil.example",
    "xrelay.example.org",
    "relay-example.org",
    *("", ":80", "127.0.0.1.evil.example", "localhost.evil.example:80", "[x]", "::1"),
)


def test_an_address_or_a_name_of_the_setting_is_known_and_no_other() -> None:
    known = [
        name for name in (*ACCEPTED, *REFUSED) if known_host(name, ("", "Relay.example.org", "prometheus-target"))
    ]
    assert known == list(ACCEPTED)
    assert [name for name in ("10.0.0.1:4010", "relay.example.org", "", ":80") if known_host(name, ("",))] == [
        "10.0.0.1:4010"
    ]


def test_an_origin_must_be_the_name_that_the_request_uses() -> None:
    for origin, host in (
        ("https://relay.example.org", "relay.example.org"),
        ("https://relay.example.org", "RELAY.example.org"),
        ("https://relay.example.org", "relay.example.org:443"),
        ("http://relay.example.org", "relay.example.org:80"),
        ("http://relay.example.org:4010", "relay.example.org:4010"),
        ("http://[::1]:4010", "[::1]:4010"),
    ):
        assert same_origin(origin, host), (origin, host)
    for host in ("relay.example.org:80", "prometheus-target", "localhost"):
        assert not same_origin("https://relay.example.org", host), host
    others = ("https://relay.example.org:8443", "https://evil.example", "https://relay.example.org.evil.example")
    none = ("https://relay.example.org@evil.example", "file://relay.example.org", "null", "", "https://[")
    for origin in (*others, *none, "https://relay.example.org:x"):
        assert not same_origin(origin, "relay.example.org"), origin


@pytest.mark.parametrize(
    "name",
    ["", "*", "*.example.org", "relay.example.org:4010", "https://relay.example.org", "-a", "a.", "a b", "::1"],
)
def test_a_setting_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(Misuse, match=r"--admin-host: '.*' is not the name of a host"):
        resolve(SERVE, {"admin_host": [name]}, {}, None)
    with pytest.raises(Misuse, match=r"--admin-host: '.*' is not the name of a host"):
        resolve(WAKU, {"admin_host": [name]}, {}, None)


def test_the_file_and_the_environment_have_it_too(tmp_path: Path) -> None:
    file = tmp_path / "restante.toml"
    file.write_text('[serve]\nadmin_host = ["a.example", "b.example"]\n')
    assert resolve(SERVE, {}, {}, file)[0].admin_host == ("a.example", "b.example")
    assert resolve(WAKU, {}, {"RESTANTE_WAKU_ADMIN_HOST": "a.example,b.example"}, None)[0].admin_host == (
        "a.example",
        "b.example",
    )


async def test_servers_accept_the_names_and_settings_are_changed_only_from_a_page_of_the_same_name(
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with held_port() as mailbox, held_port() as node:
        secured = ("--admin-token-file", str(token))
        async with (
            serving(tmp_path / "mailbox", options=("--admin", f"127.0.0.1:{mailbox}", *secured, *NAMES)),
            node_process(tmp_path / "node", "--admin", f"127.0.0.1:{node}", *NAMES),
            aiohttp.ClientSession() as session,
        ):
            for port in (mailbox, node):
                for name, status in (
                    ("relay.example.org", 200),
                    ("PROMETHEUS-TARGET:80", 200),
                    ("evil.example", 421),
                ):
                    async with session.get(f"http://127.0.0.1:{port}/healthz", headers={"Host": name}) as answer:
                        assert answer.status == status, name

            async def post(host: str, origin: str, secret: str = TOKEN) -> int:
                headers = {"Host": host, "Origin": origin, "Authorization": f"Bearer {secret}"}
                url = f"http://127.0.0.1:{mailbox}/settings"
                async with session.post(url, headers=headers, json={"motd": origin}) as answer:
                    return answer.status

            assert await post("relay.example.org", "https://relay.example.org") == 200
            assert await post("Relay.example.org:443", "https://relay.example.org") == 200
            assert await post("relay.example.org", "https://relay.example.org", "wrong") == 401
            assert await post("relay.example.org", "https://prometheus-target") == 403
            assert await post("localhost", "https://relay.example.org") == 403
            assert await post("evil.example", "https://evil.example") == 421
