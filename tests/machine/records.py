"""Usage records by the formulas of the reference server (server.py:353 and :430, 0.8.0), written plainly.

We differ in two points: a mark says that somebody was turned away, since there is no third row to
count, and no duration is negative when the clock was set back.
"""

from __future__ import annotations

from typing import Any

from support.mailbox.tables import Record


def nameplate(app: str, added: list[float], now: float, *, pruned: bool, crowded: bool, blur: int) -> Record:
    """One row per nameplate that has ended; `added` are the times at which its sides came."""
    result = "lonely"
    if len(added) == 2:
        result = "happy"
    if pruned:
        result = "pruney"
    if crowded:
        result = "crowded"
    return {"app_id": app, **_times(added, now, blur), "result": result}


def mailbox(
    app: str,
    sides: list[tuple[float, str | None]],
    now: float,
    *,
    for_nameplate: bool,
    pruned: bool,
    crowded: bool,
    visitors: int,
    blur: int,
) -> Record:
    """One row per mailbox that has ended; `sides` are the times at which its sides came and their moods.

    `visitors` is ours: the reference does not count them.
    """
    moods = [mood for _, mood in sides]
    result = "lonely"
    if len(sides) == 2:
        result = "happy"
    for mood in ("lonely", "errory", "scary"):  # in this order: the last one that was said counts
        if mood in moods:
            result = mood
    if pruned:
        result = "pruney"
    if crowded:
        result = "crowded"
    times = _times([added for added, _ in sides], now, blur)
    return {"app_id": app, "for_nameplate": for_nameplate, **times, "result": result, "visitors": visitors}


def client_version(app: str, side: str, now: float, said: Any, blur: int) -> Record:
    """One row per bind; `said` is its client_version: [implementation, version], or anything at all."""
    implementation = version = None
    if isinstance(said, list) and len(said) >= 2:
        implementation, version = (each if isinstance(each, str) else None for each in said[:2])
    return {
        "app_id": app,
        "side": side,
        "connect_time": _blurred(now, blur),
        "blur_time": float(blur),
        "implementation": implementation,
        "version": version,
    }


def _times(added: list[float], now: float, blur: int) -> Record:
    first = min(added)
    waiting = max(added) - first if len(added) == 2 else None
    total = now - first
    if total < 0:
        total = 0.0
    return {"started": _blurred(first, blur), "waiting_time": waiting, "total_time": total, "blur_time": float(blur)}


def _blurred(when: float, blur: int) -> float:
    if blur == 0:
        return when
    return float(blur * (when // blur))
