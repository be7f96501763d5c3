from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.mailbox.siege import CROWD, FIGURES, Siege, besieged


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Siege]:
    """One server for all the attacks of a file, with its OPTIONS and its CROWD; `{folder}` is its own folder."""
    folder = tmp_path_factory.mktemp("siege")
    options = tuple(each.format(folder=folder) for each in getattr(request.module, "OPTIONS", ()))
    async with besieged(folder / "data", options, crowd=getattr(request.module, "CROWD", CROWD)) as siege:
        yield siege


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With -v: how the pair fared beside each attack."""
    if FIGURES and terminalreporter.config.get_verbosity() > 0:
        terminalreporter.section("the pair, from add to delivery in ms")
        heads = ("sessions", "median", "p99", "longest", "MiB then")
        terminalreporter.line(f"{'beside':<60} " + " ".join(f"{head:>8}" for head in heads))
        for line in FIGURES:
            terminalreporter.line(line)
