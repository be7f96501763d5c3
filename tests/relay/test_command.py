"""`restante relay` as its users run it, but for `serve`: settings, output, exit codes, the commands of the guide."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from wormhole_transit_relay.database import get_db
from wormhole_transit_relay.usage import DatabaseUsageRecorder

from relay.saving import CURRENT, KEY, NOW, record, traffic
from restante.common.errors import Misuse
from restante.common.settings import resolve_settings
from restante.common.transfer_records import TransferRecord
from restante.relay.settings import RELAY
from restante.relay.store.schema import FILE
from restante.relay.store.sqlite import Store
from restante.relay.store.status import read_status, render_status
from support.document_shell import shell
from support.documents import Document
from support.processes import called
from support.sqlite import select


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the data of a relay that has stopped, and a usage database of the reference relay."""
    monkeypatch.chdir(tmp_path)

    async def save() -> None:
        store = Store.open(Path("relay"))
        first_of_month = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
        records = [
            record(),
            record(3000, NOW - 7200),  # yesterday
            TransferRecord(first_of_month, None, 9.0, 0, "lonely"),
            record(5, first_of_month - 1),  # last month
        ]
        await store.save(records, traffic(day_bytes=6000, month_bytes=9_000_000, a1=6000), KEY, CURRENT)
        await store.close()

    asyncio.run(save())
    with closing(get_db("usage.sqlite")) as database:
        DatabaseUsageRecorder(database).record_usage(NOW, 5.5, 1.5, 10_000, "happy")
        DatabaseUsageRecorder(database).record_usage(NOW, 5.5, None, 0, "scary")
    return tmp_path


def test_status_counts_the_records_of_today_and_of_this_month(folder: Path) -> None:
    assert called("relay", "import", "--usage", "usage.sqlite", "--data", "relay", "--merge").returncode == 0
    status = read_status(folder / "relay", NOW + 150)
    assert (status.running, status.saved, status.age, status.records) == (False, NOW, 150, 5)
    text = render_status(status)
    assert text == (
        "relay         not running\nas of         2 min ago, the last save\nconnected     4\nwaiting       1\n"
        "records       5\n\n"
        "               today  this month\n"
        "relayed bytes  6,000   9,000,000\n"
        "happy              1           2\n"
        "lonely             0           1\n"
        "redundant          0           0\n"
        "errory             0           0\n"
        "impatient          0           0\n"
        "empty              0           0\n"
        "their bytes    1,000       4,000"
    )
    tomorrow, next_month = (read_status(folder / "relay", NOW + days * 86400) for days in (1, 3))
    assert (tomorrow.day_bytes, tomorrow.month_bytes) == (0, 9_000_000)
    assert (tomorrow.today.results["happy"], tomorrow.month.results["happy"]) == (0, 2)
    assert (next_month.month_bytes, next_month.month.bytes) == (0, 0)


async def test_status_of_a_relay_that_has_saved_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    text = called("relay", "status", "--data", tmp_path).stdout
    assert text.startswith("relay         running\nas of         never saved\n")
    await store.close()
    status = json.loads(called("relay", "status", "--json", RESTANTE_RELAY_DATA=str(tmp_path)).stdout)
    assert (status["running"], status["saved"], status["today"]["results"]["happy"]) == (False, None, 0)


def test_the_commands_of_the_guide(folder: Path) -> None:
    guide = Document("docs/relay/operating.md")
    commands = [line for name in ("look", "backup", "import", "export") for line in guide.lines(name)]
    with shell(folder) as here:
        for command in commands:
            here.run(command)
    for file in (f"new-relay/{FILE}", f"imported-relay/{FILE}", "relay-backup.sqlite", "usage-copy.sqlite"):
        assert (folder / file).stat().st_mode & 0o777 == 0o600
    assert (folder / "new-relay").stat().st_mode & 0o777 == 0o700


def test_each_command_prints_what_it_did(folder: Path) -> None:
    for arguments, expected in (
        (
            ("import", "--usage", "usage.sqlite", "--merge", "--data", "relay"),
            "imported  transfers           1\nskipped   transfers unusable  1\n",
        ),
        (("export", "export.sqlite", "--data", "relay"), "exported  transfers  5\n"),
        (
            ("backup", "copy.sqlite", "--data", "relay"),
            "file          copy.sqlite\nbytes         {}\nschema        1\nlast commit   2026-11-28 00:53:20 UTC\n"
            "usage records 5\nmonth bytes   9,000,000\n".format(f"{(folder / 'relay' / FILE).stat().st_size:,}"),
        ),
    ):
        done = called("relay", *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, ""), done.stderr
    numbers = json.loads(called("relay", "restore", "copy.sqlite", "--data", "new", "--json").stdout)
    assert (numbers["file"], numbers["usage_records"], numbers["saved"]) == (f"new/{FILE}", 5, NOW)
    assert select(folder / "new" / FILE, "SELECT day_key FROM traffic") == [(b"",)]


REFUSED = {
    "serve --drain soon": "--drain: 'soon' is not a number from 0 to 604800",
    "serve --tls-cert c.pem": "--tls-cert and --tls-key belong together: set both or neither",
    "serve --listen proxy:127.0.0.1:0": "--listen: 'proxy:127.0.0.1:0' needs a proxy that may name clients",
    "serve --listen 127.0.0.1:4012": "--admin: the server listens on port 4012 already (--listen): name another port",
    "config --limit pair=5": "--limit pair=5: did you mean pairs?",
    "config --config r.toml": "r.toml: [relay] has no key 'motd': its keys are data, listen",
    "status --data none": "there is no transit relay's data in none (--data names another directory)",
    "backup relay/copy --data relay": "relay/copy is in the data directory: name a file in another directory",
    "restore usage.sqlite --data new": "usage.sqlite is not a database of this transit relay",
    "import --usage usage.sqlite --data relay": "relay is not empty: name a new directory with --data, or add",
    "export usage.sqlite --data relay": "usage.sqlite exists already: name another file, or move it away",
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_refusal_is_one_sentence(command: str, folder: Path) -> None:
    (folder / "r.toml").write_text('[serve]\nmotd = "hello"\n[relay]\nmotd = "hello"\n')
    done = called("relay", *command.split())
    assert (done.returncode in {1, 2}, done.stdout) == (True, "")
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith(f"restante: {REFUSED[command]}")


def test_one_file_has_the_settings_of_both_servers(tmp_path: Path) -> None:
    file = tmp_path / "restante.toml"
    file.write_text('[serve]\nmotd = "hello"\n[relay]\nblur_usage = 60\ndrain = 5\n[relay.limits]\npairs = 7\n')
    settings, _ = resolve_settings(RELAY, {}, {"RESTANTE_RELAY_DRAIN": "0", "RESTANTE_DATA": "post"}, file)
    assert (settings.data, settings.blur_usage, settings.drain) == ("restante-relay", 60, 0.0)
    assert (settings.limits.pairs, settings.limits.waiting) == (7, 5000)
    assert called("config", "show", "--config", file).returncode == 0
    with pytest.raises(Misuse, match=r"^RESTANTE_RELAY_LIMIT_HANDSHAKE: '0' is not a number over 0 to 600"):
        resolve_settings(RELAY, {}, {"RESTANTE_RELAY_LIMIT_HANDSHAKE": "0"}, None)
