"""Whom an address counts as."""

from __future__ import annotations

import pytest

from restante.common.net import host_and_port, household, read, shown


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a socket of another kind", "a socket of another kind"),
    ],
)
def test_an_address_is_shown_as_its_ipv4_address_or_ipv6_64(text: str, wanted: str) -> None:
    assert shown(text) == wanted


def test_an_ipv4_address_or_an_ipv6_64_is_one_household() -> None:
    def of(text: str) -> bytes:
        address = read(text)
        assert address is not None
        return household(address)

    assert of("2001:db8::1") == of("2001:db8::ffff:0:0:1") == bytes.fromhex("20010db800000000")
    assert of("2001:db8:0:1::1") != of("2001:db8::1")
    assert of("192.0.2.1") == of("::ffff:192.0.2.1") == bytes([192, 0, 2, 1])
    assert of("192.0.2.2") != of("192.0.2.1")


def test_text_that_is_no_address_is_read_as_none() -> None:
    assert [read(text) for text in ("", "x", "1.2.3", "1.2.3.4:5", "[::1]")] == [None] * 5


def test_an_ipv6_address_is_in_brackets_in_a_url() -> None:
    assert host_and_port("::1", 4010) == "[::1]:4010"
    assert host_and_port("127.0.0.1", 4010) == "127.0.0.1:4010"
