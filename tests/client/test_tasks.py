"""Waiting until anything has changed that matters."""

from __future__ import annotations

import asyncio

from restante.client.tasks import Changes


async def test_a_task_is_woken_by_the_change_that_matters_to_it_and_by_no_other() -> None:
    changes, happened, woken = Changes(), set[str](), list[str]()

    async def wait(name: str) -> None:
        await changes.next(lambda: name in happened)
        woken.append(name)

    tasks = [asyncio.create_task(wait(name)) for name in ("one", "other")]
    await asyncio.sleep(0)
    for name in ("nothing", "other", "one"):
        happened.add(name)
        changes.notify()
        await asyncio.sleep(0)
        assert woken == [each for each in ("other", "one") if each in happened]
    await asyncio.gather(*tasks)


async def test_a_task_that_names_no_condition_is_woken_by_any_change() -> None:
    changes = Changes()
    waiting = asyncio.create_task(changes.next())
    await asyncio.sleep(0)
    changes.notify()
    await waiting
