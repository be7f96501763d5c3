"""Vectors are data: tests/vectors/*.json, each read by the test of its module."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "vectors"


def load(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def unhex(item: Any) -> Any:
    """Read an item as the vectors write it: 0x… is bytes, other text is itself."""
    if isinstance(item, list):
        return [unhex(one) for one in item]
    if isinstance(item, str):
        return bytes.fromhex(item[2:]) if item.startswith("0x") else item.encode()
    return item
