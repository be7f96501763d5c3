from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.waku.siege import FIGURES, Siege, besieged


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Siege]:
    """One node for all the attacks of a file."""
    async with besieged(tmp_path_factory.mktemp("siege") / "data") as siege:
        yield siege


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With -v: how the pair fared beside each attack."""
    if FIGURES and terminalreporter.config.get_verbosity() > 0:
        terminalreporter.section("the pair of Waku, from post to confirmation and relay in ms")
        heads = ("median", "longest", "MiB then")
        terminalreporter.line(f"{'beside':<60} {'posted':>6} " + " ".join(f"{head:>9}" for head in heads))
        for line in FIGURES:
            terminalreporter.line(line)
