"""Usage records are those of the reference's formulas (records.py), whatever the sides, moods and clocks.

`--effort N` looks N times as hard (effort.py).
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from machine import records
from restante.mailbox.core import usage
from restante.mailbox.core.model import Mailbox, MailboxSide, Nameplate
from support.effort import examples

moments = st.floats(0, 4e9) | st.integers(0, 4_000_000_000).map(float)
blurs = st.sampled_from((0, 1, 60, 3600, 86400))
moods = st.sampled_from(("happy", "lonely", "errory", "scary", "unwelcome", "pruney", "", None))
names = st.text(max_size=5)


@given(
    names,
    st.lists(st.tuples(moments, moods), min_size=1, max_size=2),
    moments,
    blurs,
    *(st.booleans() for _ in range(3)),
)
@example("x", [(0.0, "scary"), (1.0, "errory")], 2.0, 0, True, False, False)
@example("x", [(0.0, "errory"), (1.0, "lonely")], 2.0, 0, True, False, False)
@example("x", [(5.0, "happy"), (1.0, "happy")], 2.0, 0, True, False, False)
@examples(120)
def test_a_mailbox_s_record(
    app: str,
    sides: list[tuple[float, str | None]],
    now: float,
    blur: int,
    for_nameplate: bool,
    pruned: bool,
    crowded: bool,
) -> None:
    rows = [MailboxSide(f"side {number}", when, mood=mood) for number, (when, mood) in enumerate(sides)]
    mailbox = Mailbox(1, app, "m", for_nameplate=for_nameplate, touched=0.0, sides=rows, crowded=crowded)
    mailbox.visitors, mailbox.shown, mailbox.senders = 2, ["side 0", "side 1", "gone"], ["side 1"]
    record = usage.mailbox_usage(mailbox, rows, now, blur=blur, pruned=pruned)
    assert msgspec.structs.asdict(record) == records.mailbox(
        app, sides, now, for_nameplate=for_nameplate, pruned=pruned, crowded=crowded, visitors=3, blur=blur
    )


@pytest.mark.parametrize(
    "text", ["x" * 500, "\u00e9" * 100, "\U0001f4ee" * 40, "x" + "\U0001f4ee" * 40, "x" * 128, ""]
)
def test_a_clients_text_is_cut_between_two_characters(text: str) -> None:
    kept = usage.cut(text)
    assert text.startswith(kept)
    assert len(kept.encode()) <= 128
    assert len(kept.encode()) > 124 or kept == text
    record = usage.client_version(text, text, 1.0, [text, text], blur=0)
    assert {record.app_id, record.side, record.implementation, record.version} == {kept}
    mailbox = Mailbox(1, text, "m", for_nameplate=True, touched=0.0, sides=[])
    assert usage.mailbox_usage(mailbox, [], 1.0, blur=0).app_id == kept
    assert usage.nameplate_usage(Nameplate(1, text, "4", "m", []), 1.0, blur=0).app_id == kept
