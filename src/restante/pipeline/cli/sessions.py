"""The Spark sessions of one run of the pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from restante.pipeline.spark import session
from restante.pipeline.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SessionPlace(NamedTuple):
    """Where a session runs."""

    master: str
    remote: str | None = None
    """The address of a Spark Connect server, which has the master."""

    @property
    def here(self) -> bool:
        """Return whether it runs in this process and its Java."""
        return self.remote is None and session.is_local_master(self.master)


THIS_MACHINE: Final = SessionPlace(session.LOCAL_MASTER)


class Sessions:
    """The sessions of a run: one where the operator wants it, and for a run on a cluster another one on this machine.

    At most one of the two exists at a time. Java on this machine is started for small jobs until `large_jobs` is
    called (restante.pipeline.spark.small_jobs). As a context manager, this ends the session that exists.
    """

    def __init__(
        self,
        chosen: SessionPlace,
        folder: Path,
        steps: Steps,
        started: Callable[[], None],
        *,
        memory: str,
        verbose: bool,
        list_classes: bool,
    ) -> None:
        """Start nothing yet. `started` is called after each start. The rest is for session.session."""
        self._chosen, self._folder, self._steps, self._started = chosen, folder, steps, started
        self._memory, self._verbose, self._list_classes = memory, verbose, list_classes
        self._small_jobs = True
        self._existing: tuple[SessionPlace, SparkSession] | None = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def here(self) -> bool:
        """Return whether there is a session on this machine."""
        return self._existing is not None and self._existing[0].here

    def spark(self) -> SparkSession:
        """Return the session on this machine or on the master that the operator named. Start it at the first call."""
        return self._at(self._chosen)

    @property
    def local(self) -> Callable[[], SparkSession] | None:
        """Return a function for a session on this machine, or None if that of `spark` is there."""
        return None if self._chosen.here else partial(self._at, THIS_MACHINE)

    def large_jobs(self) -> None:
        """End a session whose Java was started for small jobs. Sessions from now on are for large jobs, too."""
        if self._small_jobs and self.here:
            self._end()
        self._small_jobs = False

    def _at(self, place: SessionPlace) -> SparkSession:
        if self._existing and self._existing[0] == place:
            return self._existing[1]
        self._end()
        with self._steps.step("Spark" if place == self._chosen else "Spark on this machine") as step:
            started = self._open.enter_context(
                session.session(
                    *place,
                    settings={"spark.driver.memory": self._memory},
                    folder=self._folder,
                    verbose=self._verbose,
                    small_jobs=self._small_jobs and place.here,
                    list_classes=self._list_classes and place.here,
                )
            )
            step.done("ready")
        self._existing = place, started
        self._started()
        return started

    def _end(self) -> None:
        self._existing = None
        self._open.close()
