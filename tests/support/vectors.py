"""Vectors are data: tests/vectors/*.json, each read by the test of its module."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "vectors"


def load(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())
