"""What `deploy/` has for Prometheus and Grafana, as tests read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from support.documents import ROOT

PROMETHEUS: Final = ROOT / "deploy" / "prometheus"
RULES: Final = PROMETHEUS / "restante.rules.yml"
RULES_TEST: Final = PROMETHEUS / "restante.rules.test.yml"


class Panel(NamedTuple):
    row: str
    title: str
    fields: dict[str, Any]
    queries: list[str]


def dashboard() -> dict[str, Any]:
    return dict(json.loads((ROOT / "deploy" / "grafana" / "restante.json").read_text()))


def panels() -> Iterator[Panel]:
    row = ""
    for panel in dashboard()["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        else:
            yield Panel(row, panel["title"], panel, [target["expr"] for target in panel["targets"]])


def filled_in(query: str) -> str:
    """Return a query with values in place of Grafana's variables: all servers, and rates of a minute."""
    return query.replace("$instance", ".+").replace("$__rate_interval", "1m")


def recorded_names() -> list[str]:
    return re.findall(r"^      - record: (\S+)$", RULES.read_text(), re.MULTILINE)
