"""Files of `deploy/`: metrics that they name exist, and documents describe all of them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from support.documents import ROOT
from support.metrics import counts
from support.monitoring import RULES, RULES_TEST, dashboard, panels, recorded_names
from support.ports import held_port
from support.processes import serving
from support.waku.processes import node_process

MONITORING: Final = ROOT / "docs/monitoring.md"
WAKU_GUIDE: Final = ROOT / "docs/waku/operating.md"

METRIC: Final = re.compile(r"\b(?:restante|waku|mailserver|process)_[a-z0-9_]+\b")
RECORDED: Final = re.compile(r"\b(?:restante|waku):[a-z0-9_:]+\b")


def rule_blocks() -> dict[str, str]:
    """Return the text of each rule by its name, with the comments that stand before the next one."""
    _, *parts = re.split(r"^      - (?:record|alert): ", RULES.read_text(), flags=re.MULTILINE)
    return {part.partition("\n")[0]: part for part in parts}


def alert_names() -> list[str]:
    return re.findall(r"^      - alert: (\w+)$", RULES.read_text(), re.MULTILINE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, str]]:
    """The metrics of a mailbox server and of a Waku node."""
    folder = tmp_path_factory.mktemp("servers")
    with held_port() as mailbox_port, held_port() as waku_port:
        async with (
            serving(folder / "mailbox", options=("--admin", f"127.0.0.1:{mailbox_port}")),
            node_process(folder / "waku", "--admin", f"127.0.0.1:{waku_port}"),
            aiohttp.ClientSession() as http,
        ):
            found = {}
            for name, port in (("mailbox", mailbox_port), ("waku", waku_port)):
                async with http.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    found[name] = await answer.text()
            yield found


def samples(page: str) -> set[str]:
    return {each.split()[0] for each in counts(page)}


def metrics(page: str) -> set[str]:
    """Return the names of metrics as the documents write them."""
    found = set()
    for family in text_string_to_metric_families(page):
        found.add(family.name + "_total" * (family.type == "counter"))
    return found


def test_rules_and_dashboard_name_only_metrics_that_the_servers_have(pages: dict[str, str]) -> None:
    known = samples(pages["mailbox"]) | samples(pages["waku"])
    assert set(METRIC.findall(RULES.read_text())) <= known
    assert set(METRIC.findall(RULES_TEST.read_text())) <= known
    for panel in panels():
        for query in panel.queries:
            assert METRIC.findall(query) or query.startswith("up{"), panel.title
            assert set(METRIC.findall(query)) <= known, panel.title


def test_labels_in_rules_and_dashboard_have_values_that_the_servers_give(pages: dict[str, str]) -> None:
    given = "".join(pages.values())
    texts = [RULES.read_text(), *(query for panel in panels() for query in panel.queries)]
    for text in texts:
        for label, value in re.findall(r'\b(kind|result|outcome|mode|cache)!?="([^"]+)"', text):
            assert f'{label}="{value}"' in given


def test_the_dashboard_shows_every_metric(pages: dict[str, str]) -> None:
    shown = {name for panel in panels() for query in panel.queries for name in METRIC.findall(query)}
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown}
    assert (metrics(pages["mailbox"]) | metrics(pages["waku"])) - shown == {"process_virtual_memory_bytes"}


def test_documents_list_every_metric_and_no_other(pages: dict[str, str]) -> None:
    table = MONITORING.read_text().partition("\n## Metrics\n")[2].partition("\n### ")[0]
    listed = re.findall(r"^\| `(restante_\w+)(?:\{[a-z,]+\})?` \|", table, re.MULTILINE)
    own = {name for name in metrics(pages["mailbox"]) if not name.startswith("process_")}
    assert sorted(listed) == sorted(own)
    listed = re.findall(
        r"^\| `((?:waku|mailserver)_\w+?)(?:_bucket)?(?:\{[a-z,]+\})?` \|", WAKU_GUIDE.read_text(), re.MULTILINE
    )
    own = {name for name in metrics(pages["waku"]) if not name.startswith("process_")}
    assert sorted(listed) == sorted(own)


def test_every_alert_has_a_duration_a_severity_a_summary_and_a_runbook_and_is_tested() -> None:
    blocks, tested = rule_blocks(), RULES_TEST.read_text()
    assert len(alert_names()) >= 19
    for name in alert_names():
        for line in (
            r"        for: \d+m",
            r"          severity: (critical|warning)",
            r'          summary: ".*\{\{ \$labels\.instance \}\}.*\."',
            r"          runbook: docs/monitoring\.md#incidents",
        ):
            assert re.search(f"^{line}$", blocks[name], re.MULTILINE), (name, line)
        assert f"alertname: {name}\n        exp_alerts:" in tested, name


def test_rules_use_only_records_that_other_rules_make() -> None:
    recorded = recorded_names()
    assert set(RECORDED.findall(RULES.read_text())) == set(recorded)
    assert set(RECORDED.findall(RULES_TEST.read_text())) == set(recorded), "each record is tested"


def test_the_guide_names_every_alert_and_every_record() -> None:
    guide = MONITORING.read_text()
    assert "## Incidents" in guide  # the runbook of every alert
    for name in (*alert_names(), *recorded_names()):
        assert f"`{name}`" in guide, name


def test_the_dashboard_needs_nothing_but_a_data_source_and_explains_each_panel() -> None:
    assert [variable["name"] for variable in dashboard()["templating"]["list"]] == ["datasource", "instance"]
    for panel in panels():
        assert panel.fields["description"].endswith("."), panel.title
        assert panel.fields["fieldConfig"]["defaults"]["unit"], panel.title
        for target in (panel.fields, *panel.fields["targets"]):
            assert target["datasource"]["uid"] == "${datasource}", panel.title
        assert all('instance=~"$instance"' in query for query in panel.queries), panel.title


def test_the_example_of_prometheus_names_the_default_admin_ports() -> None:
    example = (RULES.parent / "prometheus.yml").read_text()
    assert re.findall(r'targets: \["(127\.0\.0\.1:40\d\d)"\]', example) == ["127.0.0.1:4010", "127.0.0.1:4011"]
    assert re.findall(r"job_name: (\S+)", example) == ["restante", "restante-waku"]
