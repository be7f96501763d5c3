"""Timelines to show on pages, of a transfer whose sender waits for its peer; and what holds for all pages."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re

from msgspec.structs import replace

from restante.timing.model.timeline import ROLES, Role, Timeline
from support.markup import Tags
from support.timing.drawn import Path, timeline_of, waiting

PATHS = {"sender": Path(0.020, 0.020, 0.0), "receiver": Path(0.030, 0.030, 0.0)}
WAITED = waiting(2.4, human=0.09, paths=PATHS)
"""A transfer whose sender waits 2.3 s until the receiver starts, which then waits 90 ms for its user."""


def waited(*roles: Role) -> Timeline:
    """Return the transfer, or what the log of one client tells of it without a trace."""
    return timeline_of(WAITED, roles=roles or ROLES, traced=not roles)


def of_events(*names: str) -> Timeline:
    """Return what a log tells that has the sender's events of these names only."""
    events = [event for event in WAITED.logs["sender"] if event["name"] in names]
    drawn = dataclasses.replace(WAITED, logs={"sender": events})
    return timeline_of(drawn, roles=["sender"], traced=False)


def hostile(text: str) -> Timeline:
    """Return a timeline with a text where only words of the lists can be."""
    timeline = waited()
    commands = [replace(command, type=text, phase=text) for command in timeline.commands]
    return replace(timeline, commands=commands, spans=[replace(span, name=text) for span in timeline.spans])


def closed(content: str, *elements: str) -> Tags:
    """Check that a page is well-formed, refers to nothing else, and allows only these elements of its own."""
    tags = Tags(content)
    assert content.startswith("<!DOCTYPE html>")
    assert len(tags.texts["h1"]) == 1
    ids = tags.values("id")
    assert len(ids) == len(set(ids))
    for attribute in ("src", "srcset", "action", "style", "data", "poster", "formaction", "xlink:href"):
        assert tags.values(attribute) == []
    assert not [name for _, name, _ in tags.attributes if name.startswith("on")]
    assert not re.search(r"url\((?!#)|@import", content)
    own = {}
    for element in elements:
        [body] = re.findall(rf"<{element}>(.*?)</{element}>", content, re.DOTALL)
        own[f"{element}-src"] = f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
    policy = next(value for value in tags.values("content") if "default-src" in value)
    none = dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'")
    assert dict(rule.strip().split(" ", 1) for rule in policy.split(";")) == {**none, "img-src": "data:", **own}
    assert content.index("Content-Security-Policy") < content.index("<title>")
    return tags
