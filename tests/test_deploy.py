"""Files of `deploy/`: metrics that they name exist, and documents describe all of them."""

from __future__ import annotations

import re
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The metrics of a mailbox server and of a Waku node."""
    folder, texts = tmp_path_factory.mktemp("servers"), {}
    with held_port() as mailbox_port, held_port() as waku_port:
        async with (
            serving(folder / "mailbox", options=("--admin", f"127.0.0.1:{mailbox_port}")),
            node_process(folder / "waku", "--admin", f"127.0.0.1:{waku_port}"),
            aiohttp.ClientSession() as http,
        ):
            for name, port in (("mailbox", mailbox_port), ("waku", waku_port)):
                async with http.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    texts[name] = await answer.text()
    return texts


def test_rules_and_dashboard_name_only_metrics_and_labels_that_the_servers_have(pages: dict[str, str]) -> None:
    known = {name.split()[0] for page in pages.values() for name in counts(page)}
    shown: set[str] = set()
    for panel in panels():
        for query in panel.queries:
            assert METRIC.findall(query) or query.startswith("up{"), panel.title
            shown.update(METRIC.findall(query))
    assert shown.union(METRIC.findall(RULES.read_text()), METRIC.findall(RULES_TEST.read_text())) <= known
    for text in (RULES.read_text(), *(query for panel in panels() for query in panel.queries)):
        for label, value in re.findall(r'\b(kind|result|outcome|mode|cache)!?="([^"]+)"', text):
            assert any(f'{label}="{value}"' in page for page in pages.values()), (label, value)


def test_documents_and_dashboard_have_every_metric_and_no_other(pages: dict[str, str]) -> None:
    table = MONITORING.read_text().partition("\n## Metrics\n")[2].partition("\n### ")[0]
    labels = r"(?:_bucket)?(?:\{[a-z,]+\})?` \|"
    listed = {
        "mailbox": re.findall(rf"^\| `(restante_\w+?){labels}", table, re.MULTILINE),
        "waku": re.findall(rf"^\| `((?:waku|mailserver)_\w+?){labels}", WAKU_GUIDE.read_text(), re.MULTILINE),
    }
    shown = {name for panel in panels() for query in panel.queries for name in METRIC.findall(query)}
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown}
    for server, page in pages.items():
        families = text_string_to_metric_families(page)
        names = {family.name + "_total" * (family.type == "counter") for family in families}
        assert sorted(listed[server]) == sorted(name for name in names if not name.startswith("process_"))
        assert names - shown <= {"process_virtual_memory_bytes"}


def test_every_rule_is_tested_and_in_the_guide_and_every_alert_says_what_to_do() -> None:
    rules, tested, guide = RULES.read_text(), RULES_TEST.read_text(), MONITORING.read_text()
    blocks = dict(re.findall(r"^      - alert: (\w+)\n((?:(?!      - ).*\n)*)", rules, re.MULTILINE))
    assert len(blocks) >= 19
    for name, block in blocks.items():
        for line in (
            r"        for: \d+m",
            r"          severity: (critical|warning)",
            r'          summary: ".*\{\{ \$labels\.instance \}\}.*\."',
            r"          runbook: docs/monitoring\.md#incidents",
        ):
            assert re.search(f"^{line}$", block, re.MULTILINE), (name, line)
        assert f"alertname: {name}\n        exp_alerts:" in tested, name
    assert "## Incidents" in guide
    recorded = recorded_names()
    assert [name for name in (*blocks, *recorded) if f"`{name}`" not in guide] == []
    assert set(RECORDED.findall(rules)) == set(recorded), "rules use only records that other rules make"
    assert set(RECORDED.findall(tested)) == set(recorded)


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
