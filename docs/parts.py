"""Draws docs/parts.svg, the picture of docs/design.md: `python docs/parts.py`."""  # noqa: INP001

from __future__ import annotations

from pathlib import Path

BOXES = {
    "cli": (20, 20, 1120, 34, "command line: restante", ""),
    "relay": (20, 90, 160, 56, "transit relay", "relay serve"),
    "client": (260, 90, 160, 56, "client", "send, receive, library"),
    "mailbox": (500, 90, 160, 56, "mailbox server", "serve"),
    "node": (740, 90, 160, 56, "Waku Mailserver", "waku serve"),
    "requester": (980, 90, 160, 56, "Waku requester", "waku request, library"),
    "transfers": (40, 200, 120, 36, "", "usage records"),
    "logs": (280, 200, 120, 36, "", "timing logs"),
    "records": (500, 200, 160, 36, "", "usage records, trace"),
    "archive": (760, 200, 120, 36, "", "archive"),
    "ranges": (1000, 200, 120, 36, "", "missing ranges"),
    "timing": (260, 300, 160, 56, "timing tool", "timing render, compare"),
    "pipeline": (590, 300, 310, 56, "pipeline", "pipeline run, report, query, gaps"),
    "demo": (980, 300, 160, 56, "demo", "pipeline demo"),
    "page": (270, 400, 140, 36, "", "page of a transfer"),
    "lake": (665, 400, 160, 36, "", "lake, reports"),
    "common": (20, 470, 1120, 34, "common: what all parts share", ""),
}
"""Left, top, width and height; then the name of a part and its commands, or no name and the files that it leaves."""

ARROWS = {
    "client": "relay mailbox logs",
    "relay": "client transfers",
    "mailbox": "client records",
    "node": "requester archive",
    "requester": "node",
    "transfers": "pipeline",
    "logs": "timing pipeline",
    "records": "timing pipeline",
    "archive": "pipeline",
    "ranges": "requester",
    "timing": "page",
    "pipeline": "ranges lake",
    "demo": "pipeline",
}
"""Who sends to whom, who writes which files, and who reads them."""

LABELS = [
    (220, 108, "TCP"),
    (460, 108, "WebSocket"),
    (940, 108, "RLPx"),
    (940, 318, "files"),
    (940, 345, "like these"),
]


def box(left: int, top: int, width: int, height: int, name: str, text: str) -> str:
    """Return the SVG of a part, or of files, whose box is dashed."""
    style = 'fill="#e8f0fa"' if name else 'fill="#fff" stroke-dasharray="4 3"'
    middle, y = left + width // 2, top + height // 2 + 5
    lines = [(name, y - 9 if text else y, "bold"), (text, y + 10 if name else y, "normal")]
    texts = (
        f'<text x="{middle}" y="{at}" font-weight="{weight}">{line}</text>' for line, at, weight in lines if line
    )
    return f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="4" {style}/>' + "".join(texts)


def arrow(start: str, end: str) -> str:
    """Return the SVG of an arrow: to the side of a box in the same row, else to its bottom or top."""
    (x, y, width, height, *_), (to_x, to_y, to_width, to_height, *_) = BOXES[start], BOXES[end]
    if y == to_y:
        points = (x + width, y + 24, to_x, y + 24) if x < to_x else (x, y + 32, to_x + to_width, y + 32)
    else:
        left, right = max(x, to_x), min(x + width, to_x + to_width)
        if left < right:
            from_x = end_x = (left + right) // 2
        else:
            from_x, end_x = (x + width - 20, to_x + 20) if x < to_x else (x + 20, to_x + to_width - 20)
        points = (from_x, y + height, end_x, to_y) if y < to_y else (from_x, y, end_x, to_y + to_height)
    return '<line x1="{}" y1="{}" x2="{}" y2="{}" marker-end="url(#head)"/>'.format(*points)


HEAD = 'viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"'
STYLE = (
    "rect, line { stroke: #456 } text { fill: #123; font-family: sans-serif; font-size: 13px; text-anchor: middle }"
)
PICTURE = [
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1160 524">',
    f'<style>{STYLE}</style><marker id="head" {HEAD}><path d="M0 0L8 4L0 8z" fill="#456"/></marker>',
    '<path d="M0 0h1160v524H0z" fill="#fff"/>',
    *(arrow(start, end) for start, ends in ARROWS.items() for end in ends.split()),
    *(box(*fields) for fields in BOXES.values()),
    *(f'<text x="{x}" y="{y}">{text}</text>' for x, y, text in LABELS),
    "</svg>\n",
]
Path(__file__).with_suffix(".svg").write_text("\n".join(PICTURE))
