"""`restante import` and `restante export` as their users run them: their output, their exit code."""

from __future__ import annotations

import json
from pathlib import Path

from support.mailbox.reference_sources import Their, alter
from support.processes import called, restante, serving


def play(their: Their) -> None:
    their.bind("a", 1000)
    their.claim("a", "4", 1000)
    their.add("a", "m", "p", "b", 1001)
    their.open("b", "n", 1003)
    their.close("b", "n", "happy", 1004)
    alter(
        their.relay,
        "INSERT INTO messages VALUES ('x', 'gone', 'a', 'p', 'b', 1000, NULL)",
        "INSERT INTO mailboxes VALUES ('x', 'bare', 1000, 0)",
    )


IMPORTED = """\
imported  mailboxes                  2
imported  mailbox sides              2
imported  nameplates                 1
imported  nameplate sides            1
imported  messages                   1
imported  usage nameplates           0
imported  usage mailboxes            1
imported  usage client versions      1
skipped   mailboxes without sides    1
skipped   messages without mailbox   1
"""

EXPORTED = """\
exported  nameplates       0
exported  mailboxes        1
exported  client versions  1
"""


def files(their: Their) -> list[str]:
    return ["--channel", str(their.relay), "--usage", str(their.usage)]


def test_an_import_reports_imported_and_skipped_rows(their: Their, data: Path) -> None:
    play(their)
    result = restante("import", *files(their), "--data", data)
    assert (result.returncode, result.stderr) == (0, "")
    assert [line.split() for line in result.stdout.splitlines()] == [line.split() for line in IMPORTED.splitlines()]
    assert len({len(line) for line in result.stdout.splitlines()}) == 1  # one below the other
    assert data.stat().st_mode & 0o777 == 0o700
    assert (data / "restante.sqlite").stat().st_mode & 0o777 == 0o600
    result = called("import", *files(their), "--data", data, "--merge")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"restante: --channel {their.relay} was imported already (")
    assert result.stderr.count("\n") == 1


def test_an_import_reports_as_json(their: Their, data: Path) -> None:
    play(their)
    report = json.loads(called("import", *files(their), "--json", RESTANTE_DATA=str(data)).stdout)
    assert report["imported"]["usage_client_versions"] == 1
    assert report["skipped"] == {"mailboxes_without_sides": 1, "messages_without_mailbox": 1}


def test_nothing_to_import_is_misuse(data: Path) -> None:
    for words in ([], ["--merge"], ["--usage", "gone.sqlite"]):
        result = called("import", *words, "--data", data)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)


async def test_a_running_server_blocks_imports_and_allows_exports(their: Their, data: Path, tmp_path: Path) -> None:
    play(their)
    assert called("import", "--usage", str(their.usage), "--data", data).returncode == 0
    async with serving(data):
        result = called("import", "--channel", str(their.relay), "--merge", "--data", data)
        assert result.returncode == 1
        assert result.stderr.startswith("restante: another process is using the data directory")
        result = called("export", str(tmp_path / "export.sqlite"), "--data", data)
        assert (result.returncode, result.stdout) == (0, EXPORTED)
    assert (tmp_path / "export.sqlite").stat().st_mode & 0o777 == 0o600
    result = called("export", str(tmp_path / "export.sqlite"), "--data", data)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
