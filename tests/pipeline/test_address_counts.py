"""Binds that are the first of the day from their address: what is read of them, in one run or in several."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from restante.common.usage_records import ClientVersion
from restante.mailbox.reference_import.importing import import_databases
from restante.pipeline.sources import usage_tasks
from restante.pipeline.sources.recognise import recognise
from support.mailbox.reference_sources import Their
from support.pipeline.servers import NOW, T0, alter, client, older_schema, ours
from support.pipeline.source_reads import Marks, read

DAY = 86_400

New = tuple[bool | None, bool | None]
"""Whether a bind is the first from its address, of the day and of the day and application."""


def bind(number: float, address: str | None, app_id: str = "x") -> ClientVersion:
    return client(0, connect_time=T0 + number, address_id=address, app_id=app_id)


def new(path: Path, tmp_path: Path, marks: Marks | None = None) -> list[New]:
    found = read(f"relay={path}", tmp_path / "scratch", marks).get("client_versions")
    return [(row["new_address"], row["new_address_of_app"]) for row in (found.clean if found else [])]


def test_the_first_bind_of_a_day_from_an_address_is_marked(tmp_path: Path) -> None:
    """Midnight is 6,400 seconds after T0."""
    binds = [
        *(bind(0, "aa"), bind(1, "aa"), bind(2, "bb"), bind(3, "aa", "y"), bind(4, None)),
        *(bind(6399, "bb", "y"), bind(6400, "aa"), bind(5, "bb")),
    ]
    with ours(tmp_path / "data", *binds):
        found = new(tmp_path / "data", tmp_path)
    first, of_app, again = (True, True), (False, True), (False, False)
    assert found == [first, again, first, of_app, (None, None), of_app, first, again]


def test_the_address_of_a_row_of_another_server_or_from_before_schema_2_is_not_known(tmp_path: Path) -> None:
    their = Their(tmp_path / "their")
    their.bind("side", T0)
    import_databases(tmp_path / "data", None, their.usage, merge=False)
    assert new(their.usage, tmp_path) == new(tmp_path / "data", tmp_path) == [(None, None)]
    file = older_schema(tmp_path / "older")
    alter(file, f"INSERT INTO usage_client_versions VALUES (1, '', 'x', 's', {T0}, NULL, NULL)")
    assert new(file, tmp_path) == [(None, None)]


@pytest.mark.parametrize("seed", range(3))
def test_binds_are_marked_however_they_are_read(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one run and one task, in tasks of a few rows, and in several runs; some of the times are no times."""
    dice = Random(seed)
    times = [dice.choice((0, 1, DAY, -DAY)) + dice.random() for _ in range(40)]
    binds = [bind(at, dice.choice(("aa", "bb", "cc", None)), dice.choice("xy")) for at in times]
    binds[7] = client(0, connect_time=float("inf"), address_id="aa")
    binds[9] = client(0, connect_time=-1.5, address_id="aa")
    binds[11] = client(0, connect_time=NOW + 5 * DAY, address_id="aa")
    marks: Marks = {}
    several = []
    with ours(tmp_path / "data") as server:
        for begin in range(0, 40, 8):
            server.write(*binds[begin : begin + 8])
            several += new(tmp_path / "data", tmp_path, marks)
        together = new(tmp_path / "data", tmp_path)
        monkeypatch.setattr(usage_tasks, "ROWS_PER_TASK", 3)
        assert new(tmp_path / "data", tmp_path) == together
    assert several == together
    assert len(together) == 37
    days = {(at + T0) // DAY for at in times}
    assert sum(first is True for first, _ in together) <= 3 * (len(days) + 1)


def test_no_hash_of_an_address_leaves_the_copy(tmp_path: Path) -> None:
    texts: list[str] = []
    marks: Marks = {}
    digests = []
    for address in ("canary", "other"):
        binds = bind(0, address), client(0, connect_time=-1.0, address_id=address)
        with ours(tmp_path / address, *binds) as server:
            alter(server.file, "UPDATE usage_client_versions SET side = 'canary'")
            source = recognise(f"relay={tmp_path / address}")
            found = read(source, tmp_path / "scratch", marks if address == "canary" else None, said=texts)
        rows = found["client_versions"].rows
        assert [row["fault"] for row in rows] == [None, "out of range"]
        digests.append(rows[1]["digest"])
        assert "canary" not in repr(found) + repr(marks) + repr(texts)
    assert digests[0] == digests[1], "it is not made from the hash"
