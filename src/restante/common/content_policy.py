"""The Content-Security-Policy of a page that loads nothing. Pure."""

from __future__ import annotations

import base64
import hashlib


def page_policy(style: str, script: str = "") -> str:
    """Return the policy: this style, this script if there is one, and no requests. The icon is empty."""
    script_source = f" script-src {_source(script)};" if script else ""
    return (
        f"default-src 'none'; img-src data:; style-src {_source(style)};{script_source}"
        " base-uri 'none'; form-action 'none'"
    )


def _source(content: str) -> str:
    """Return the source expression of a style or script (CSP Level 3, section 2.3.1)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
