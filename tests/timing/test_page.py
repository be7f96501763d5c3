"""The HTML page of a timeline, as text: what is in it, and what it cannot do."""

from __future__ import annotations

import base64
import hashlib
import re

import msgspec
import pytest

from restante.timing.model.elapsed import CAUSES, NOT_RUNNING
from restante.timing.model.timeline import ROLES, Client, Spent, Timeline
from restante.timing.outputs.page import page
from restante.timing.outputs.page_tables import APPEARANCES
from support.markup import Tags, plain
from support.timing import pages as timelines

TIMELINES = {
    "both": timelines.waited(),
    "sender": timelines.of_one("sender"),
    "receiver": timelines.of_one("receiver"),
    "not compared": timelines.not_compared(),
    "no commands": timelines.without_commands(),
    "a moment": timelines.of_a_moment(),
}

BREAK_OUT = "</script><script>alert(1)</script><!--<script>&lt;\u2028\u2029'\"\x1b[31m"


def embedded(content: bytes) -> str:
    found = re.findall(r'<script type="application/json" id="timeline">(.*?)</script>', content.decode(), re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.mark.parametrize("name", TIMELINES)
def test_a_page_is_well_formed_and_has_the_timeline(name: str) -> None:
    content = page(TIMELINES[name])
    tags = Tags(content.decode())
    assert content.startswith(b"<!DOCTYPE html>")
    assert len(tags.texts["h1"]) == 1
    ids = tags.values("id")
    assert len(ids) == len(set(ids))
    assert msgspec.json.decode(embedded(content), type=Timeline) == TIMELINES[name]
    assert "$" not in re.sub(r"(?s)<script.*?</script>", "", content.decode())


@pytest.mark.parametrize("name", TIMELINES)
def test_a_page_names_nothing_outside_of_it(name: str) -> None:
    content = page(TIMELINES[name]).decode()
    tags = Tags(content)
    assert not re.search(r"[a-z]+://|url\((?!#)|@import|\bfetch\(|XMLHttp|WebSocket|sendBeacon|\bimport\(", content)
    assert set(tags.values("href")) == {"data:,"}
    for attribute in ("src", "srcset", "action", "style", "data", "poster", "formaction"):
        assert tags.values(attribute) == []
    assert not [each for _, each, _ in tags.attributes if each.startswith("on")]


def test_the_policy_allows_the_page_s_own_style_and_script_only() -> None:
    content = page(timelines.waited()).decode()
    tags = Tags(content)
    policy = next(value for value in tags.values("content") if "default-src" in value)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

    def hashed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    style = re.findall(r"<style>(.*?)</style>", content, re.DOTALL)
    script = re.findall(r"<script>(.*?)</script>", content, re.DOTALL)
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": hashed(*style),
        "script-src": hashed(*script),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert content.index("Content-Security-Policy") < content.index("<title>")


def test_no_word_breaks_out_of_the_script() -> None:
    timeline = timelines.hostile(BREAK_OUT)
    content = page(timeline)
    data = embedded(content)
    assert not set(data) & set("<>&\u2028\u2029")
    assert msgspec.json.decode(data, type=Timeline) == timeline
    assert content.count(b"<script") == 2
    assert b"alert" not in content.replace(data.encode(), b"")


def test_each_cause_has_a_look_and_words() -> None:
    assert set(APPEARANCES) == {*CAUSES, NOT_RUNNING}
    assert len({(look.path, look.thickness) for look in APPEARANCES.values()}) == len(APPEARANCES)
    for cause in CAUSES:
        for role in ROLES:
            client = Client(role, 1, 0, 9, None, None, 0, False, [Spent(cause, 9, {cause: 9})])
            said = plain(page(msgspec.structs.replace(timelines.of_a_moment(), clients=[client])))
            assert f"The {role} spent 9 µs of 9 µs" in said


def test_the_tables_are_there_without_a_script() -> None:
    said = plain(page(timelines.waited()))
    assert "Transfer of 3.4 s" in said
    assert "The sender spent 2.65 s of 3.4 s waiting for the receiver, which was not running." in said
    assert "The receiver spent 490 ms of 800 ms waiting for the network to and from the server." in said
    assert "The sender's clock was 1.25 s ahead of the server's ± 500 µs" in said
    assert "The receiver's clock was 70 ms behind the server's ± 2 ms" in said
    assert "peer 2.65 s 78% receiver: not running 2.31 s 68%" in said
    assert "network out 7 20 ms 20 ms 140 ms ± 500 µs" in said
    assert "transfer 1 of 2 80 ms 80 ms 80 ms" in said


def test_what_is_not_there_is_said() -> None:
    sender = plain(page(timelines.of_one("sender")))
    assert "waiting for the other client." in sender
    assert "No log of the receiver" in sender
    assert "Without a trace of the server" in sender
    failed = plain(page(timelines.not_compared()))
    assert "The sender's clock could not be compared with the server's" in failed
    assert "network out 0 of 7 ? ? ?" in failed
    assert "There was no command and no message." in plain(page(timelines.without_commands()))
    assert "The receiver's log has no duration." in plain(page(timelines.of_a_moment()))


def test_a_clock_that_moved_and_one_that_was_given_are_said() -> None:
    whole = timelines.waited()
    clients = [
        msgspec.structs.replace(whole.clients[0], moved_us=2_000_000),
        msgspec.structs.replace(whole.clients[1], given=True),
    ]
    said = plain(page(msgspec.structs.replace(whole, clients=clients)))
    assert "± 500 µs; it moved by 2 s or more" in said
    assert "70 ms behind the server's, as --skew says" in said
