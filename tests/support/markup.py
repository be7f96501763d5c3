"""HTML as tests read it: whether elements end where they should, attributes, and texts."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "img"}


class Tags(HTMLParser):
    """Checks that each element ends where it should, and gathers attributes and texts."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


def plain(content: bytes) -> str:
    body = re.sub(r"(?s)<(script|style|svg).*?</\1>", "", content.decode())
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())
