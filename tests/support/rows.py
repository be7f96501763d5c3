"""Tables that one test walks: a test for each row costs more to collect and to report than to run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

Test = Callable[..., Any]


def every(
    names: str | tuple[str, ...], rows: Iterable[Any], ids: Callable[[Any], object] | Iterable[str] | None = None
) -> Callable[[Test], Test]:
    """Run a test for each row of a table, as `pytest.mark.parametrize` does, but as one test.

    All rows are run. If one fails, the test fails with the error of the first one and the names of all.
    The rows share the fixtures of the test.
    """
    arguments = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names
    table = list(rows)
    assert table, "a table without rows tests nothing"
    named = [repr(row) for row in table] if ids is None else list(map(str, map(ids, table) if callable(ids) else ids))

    def decorate(test: Test) -> Test:
        def calls(fixtures: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
            for name, row in zip(named, table, strict=True):
                values = row if len(arguments) > 1 else (row,)
                yield name, dict(zip(arguments, values, strict=True)) | fixtures

        @functools.wraps(test)
        def walk(**fixtures: Any) -> None:
            failures = Failures()
            for name, given in calls(fixtures):
                with failures.of(name):
                    test(**given)
            failures.tell()

        @functools.wraps(test)
        async def walk_async(**fixtures: Any) -> None:
            failures = Failures()
            for name, given in calls(fixtures):
                with failures.of(name):
                    await test(**given)
            failures.tell()

        made: Any = walk_async if inspect.iscoroutinefunction(test) else walk
        parameters = inspect.signature(test).parameters.items()
        rest = [parameter for name, parameter in parameters if name not in arguments]
        made.__signature__ = inspect.Signature(rest)
        return cast("Test", made)

    return decorate


class Failures:
    """What failed so far, by the name of the row."""

    def __init__(self) -> None:
        self._failed: list[tuple[str, BaseException]] = []

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - `tell` raises it
            self._failed.append((name, error))

    def tell(self) -> None:
        if self._failed:
            _, error = self._failed[0]
            error.add_note(f"rows that failed: {', '.join(name for name, _ in self._failed)}")
            raise error
