"""`Poster` and `post` of the library: one connection for many envelopes, and what is said if there is none."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from restante.common.errors import Misuse
from restante.waku import ConnectionOptions, NodeUnavailableError, Poster, SilentError, post
from restante.waku.limits import Limits
from restante.waku.node import main
from support.bounds import bounded
from support.waku.fake_node import SHARED
from support.waku.inside import Today, inside
from support.waku.letters import TOPIC


async def test_a_thousand_posts_of_a_poster_take_one_connection(tmp_path: Path) -> None:
    async with inside(tmp_path, clock=Today()) as here, Poster(here.enode) as poster, bounded("the posts"):
        posts = [poster.post(b"%d" % number, topic=TOPIC, to=SHARED) for number in range(1000)]
        posted = [*await asyncio.gather(*posts[:-1]), await posts[-1]]
        assert all(one.confirmed for one in posted)
        assert {one.envelope.hash for one in posted} == set(await here.archive.hashes())
        assert len(here.node.connections) == 1
        assert here.node.lost == {}


async def test_a_lost_connection_fails_posts_that_are_under_way_and_the_next_makes_another(
    tmp_path: Path,
) -> None:
    async with inside(tmp_path, clock=Today()) as here:
        async with Poster(here.enode) as poster, bounded("the posts"):
            here.archive.idle.clear()
            under_way = asyncio.create_task(poster.post(b"1", topic=TOPIC, to=SHARED))
            await here.until("the envelope", lambda: here.archive.saving)
            [connection] = here.node.connections
            connection.abort()
            with pytest.raises(NodeUnavailableError, match="the node disconnected: the connection was lost"):
                await under_way
            here.archive.idle.set()
            both = [poster.post(b"%d" % number, topic=TOPIC, to=SHARED) for number in (2, 3)]
            assert all(one.confirmed for one in await asyncio.gather(*both))
            assert len(here.node.connections) == 1
        with pytest.raises(Misuse, match="posts within its context"):
            await poster.post(b"4", topic=TOPIC, to=SHARED)


async def test_a_program_that_connects_too_often_learns_which_limit_it_met_and_so_does_the_operator(
    tmp_path: Path,
) -> None:
    limits = Limits(address_connects=0.001, address_connects_at_once=2)
    async with inside(tmp_path, limits=limits) as here:
        for _ in range(3):
            (await here.greet()).cut()
        with pytest.raises(SilentError, match=r"address_connects.*: send many envelopes over one connection"):
            await post(here.enode, b"", topic=TOPIC, to=SHARED)
        assert main.log_counts(here.node)["turned away before the handshake, over address_connects"] == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("connect_seconds", 0), ("ping_seconds", float("nan")), ("max_pages", 1.5), ("page_envelopes", 1001)]
    + [("user_agent", value) for value in ("", "a\nb", "é", 5)],
)
def test_an_option_that_cannot_be_used_is_named(option: str, value: Any) -> None:
    with pytest.raises(Misuse, match=re.escape(f"{option}: {value!r} is not ")):
        ConnectionOptions(**{option: value})
