"""Makes the docs' picture of a report: the demo of one seed, whose last day is always the same.

python -m support.pipeline.report_picture [DEMO]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from playwright.sync_api import ViewportSize

from support.documents import ROOT
from support.timing.browser import chromium, opened

LAST_DAY: Final = "2026-11-24"
MONTH: Final = "2026-11"
VIEWPORT: Final = ViewportSize(width=1240, height=1930)


def take_picture(reports: Path, picture: Path) -> None:
    """Store a picture of the top of a month's page."""
    with TemporaryDirectory() as folder, chromium() as browser:
        content = (reports / f"{MONTH}.html").read_bytes()
        with opened(browser, content, Path(folder), viewport=VIEWPORT) as found:
            found.page.screenshot(path=picture)


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        demo = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(name) / "demo"
        subprocess.run([sys.executable, "-m", "restante", "pipeline", "demo", demo, "--last", LAST_DAY], check=True)
        take_picture(demo / "reports", ROOT / "docs/pipeline/report.png")
