"""Real clients under each mode of permission; this one can show no work (README, "Which clients pass")."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from support.mailbox.proxy import to_client, to_server
from support.mailbox.scene import RECEIVER, SENDER, Scene, assert_text_arrives
from support.mailbox.servers import Restante

Opened = Callable[..., AbstractAsyncContextManager[Scene]]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    @asynccontextmanager
    async def scene(*flags: str) -> AsyncIterator[Scene]:
        server = Restante(tmp_path / "server")
        server.flags = flags
        async with Scene(tmp_path, server) as scene:
            yield scene

    return scene


@pytest.mark.parametrize("mode", ["none", "adaptive"])
async def test_a_text_arrives_if_no_work_is_demanded(mode: str, opened: Opened) -> None:
    async with opened("--permission", mode) as scene:
        sender = await scene.send_text("come in")
        receiver = await scene.receive(await sender.code())
        await assert_text_arrives(sender, receiver, "come in")
        scene.assert_one_happy_session()


async def test_a_client_that_cannot_show_the_demanded_work_gives_up_at_once(opened: Opened) -> None:
    async with opened("--permission", "hashcash") as scene:
        # A receiver that is refused before it has used its code fails of that: it expects no error so early.
        refused = scene.proxy.hold(to_client(RECEIVER, "error"))
        sender = await scene.send_text("let me in")
        await scene.proxy.passed(to_client(SENDER, "error"))
        receiver = await scene.receive("4-purple-sausages")
        await scene.proxy.passed(to_server(RECEIVER, "claim"))
        refused.let_go()
        for client in (sender, receiver):
            outcome = await client.leaves()
            assert outcome.exit_code == 1, outcome
            assert "permission denied" in outcome.stderr, outcome
        assert scene.server.live() == {}


async def test_default_limits_do_not_hinder_clients_behind_a_proxy_that_names_them(
    opened: Opened,
) -> None:
    async with opened("--trust-proxy", "127.0.0.0/8", "--permission", "adaptive") as scene:
        sender = await scene.send_text("x" * 100_000)
        receiver = await scene.receive(await sender.code())
        await assert_text_arrives(sender, receiver, "x" * 100_000)
