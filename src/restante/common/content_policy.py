"""The hashes by which the Content-Security-Policy of a page allows its own styles and scripts. Pure."""

from __future__ import annotations

import base64
import hashlib


def source_hash(content: str) -> str:
    """Return the source expression of a style or script (CSP Level 3, section 2.3.1), without its quotes."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
