"""What changed by a demo's sources: changes.csv recomputed by docs/pipeline/operating.md ("What changed").

Nothing of the pipeline's code is used. `size` and the ties of medians, which the guide leaves open, are stated here.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from support.pipeline.raw_periods import Period
from support.pipeline.raw_report import Row, Rows, guesses
from support.pipeline.raw_sources import RawSources

LISTED_VERSIONS = 5
LISTED_SOURCES = 10
SINCE = "day BETWEEN $start AND $last"
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


class Part(NamedTuple):
    """A part of a whole, such as failed mailboxes of mailboxes."""

    part: int
    whole: int

    @property
    def share(self) -> float:
        return self.part / self.whole if self.whole else 0.0


class Change(NamedTuple):
    """A row of changes.csv."""

    measure: str
    source: str | None
    client: tuple[str | None, str | None]
    days: Sequence[date]
    counts: tuple[int | None, int | None]
    shares: tuple[float | None, float | None]
    size: int
    words: str

    def row(self) -> Row:
        days = sorted(self.days)
        numbers = (*self.counts, *self.shares, self.size)
        return (self.measure, self.source, *self.client, days[0], days[-1], len(days), *numbers, self.words)


Number = TypeVar("Number", int, float)

NO_CLIENT = (None, None)
NO_COUNTS = (None, None)
NO_SHARES = (None, None)

Shares = Mapping[date, Part]


class Compared(NamedTuple):
    """The days of a period and the days before, as far as the sources have them."""

    now: list[date]
    before: list[date]
    period: Period

    @property
    def ends(self) -> dict[str, date]:
        return {"start": self.before[0], **self.period.ends}


def changes(raw: RawSources, period: Period) -> Rows:
    """Return the largest changes of each measure, the largest first."""
    days = Compared([*filter(raw.has, period.days)], [*filter(raw.has, period.before)], period)
    if not days.now or not days.before:
        return []
    silent = _silent_hours(raw, days)
    named = {each.source for each in silent}
    found = [
        *(_failures_of_servers(raw, days) + _failures_of_versions(raw, days) + silent),
        *(each for each in _without_rows(raw, days) if each.source not in named),
        *(_missing(raw, days) + _results_of_guesses(raw, period) + _one_side(raw, days)),
    ]
    found.sort(key=lambda each: (-each.size, each.measure, each.words))
    listed: Counter[str] = Counter()
    rows = []
    for each in found:
        listed[each.measure] += 1
        if listed[each.measure] <= (LISTED_VERSIONS if each.measure.endswith(" of a version") else LISTED_SOURCES):
            rows.append(each.row())
    return rows


# ── failed mailboxes ─────────────────────────────────────────────────────────────────────────────


def _added(parts: Collection[Part]) -> Part:
    return Part(sum(each.part for each in parts), sum(each.whole for each in parts))


def _kept(parts: Collection[Part]) -> list[Part]:
    """Return days without the quarter, rounded down, that has the highest shares."""
    ranked = sorted((each for each in parts if each.whole), key=lambda each: each.share)
    return ranked[: len(ranked) - len(ranked) // 4]


def _more(now: Part, usual: float) -> int:
    """Return how many more there are than the usual share lets expect."""
    return round(now.part - now.whole * usual)


def _rose(now: Part, before: Part) -> bool:
    if not now.whole or not before.whole:
        return False
    more = _more(now, before.share)
    return now.share - before.share >= 0.1 and more >= 10 and _log_ratio(now, before) >= 12


def _risen_days(of: Mapping[date, Part], usual: Part, days: Compared) -> list[date]:
    """Return the days that rose alone; and of the others those that are higher, if these and the others rose."""
    there = [day for day in days.now if day in of and of[day].whole]
    alone = [day for day in there if _rose(of[day], usual)]
    others = [day for day in there if day not in alone]
    higher = [day for day in others if of[day].share - usual.share >= 0.1]
    if all(_rose(_added([of[day] for day in each]), usual) for each in (others, higher)):
        alone += higher
    return sorted(alone)


def _log_ratio(one: Part, other: Part) -> float:
    """Return the logarithm of the likelihood ratio of two shares to one (Wilks: half of the G statistic)."""
    both = _added([one, other])
    found = 0.0
    for each in (one, other):
        for seen, expected in (
            (each.part, each.whole * both.share),
            (each.whole - each.part, each.whole * (1 - both.share)),
        ):
            found += seen * math.log(seen / expected) if seen else 0.0
    return found


def _by_name(rows: Rows) -> dict[Any, dict[date, Part]]:
    found: dict[Any, dict[date, Part]] = defaultdict(dict)
    for name, day, part, whole in rows:
        found[name][day] = Part(part, whole)
    return found


def _failures_of_servers(raw: RawSources, days: Compared) -> list[Change]:
    sql = f"""
        SELECT source, day, count(*) FILTER (result <> 'happy'), count(*) FROM ended
        WHERE {SINCE} AND kind <> 'nameplate' GROUP BY ALL ORDER BY ALL
    """
    found = []
    for source, of in _by_name(raw.rows(sql, **days.ends)).items():
        before = [of[day] for day in days.before if day in of]
        usual = _added(_kept(before))
        risen = _risen_days(of, usual, days)
        if len(before) >= 4 and risen:
            now = _added([of[day] for day in risen])
            words = (
                f"At {source}, {_percent(now.share)} of the mailboxes failed {_on(risen)}. {_past(before, usual)}."
            )
            found.append(_risen("failed mailboxes of a server", source, NO_CLIENT, risen, now, usual, words))
    return found


def _failures_of_versions(raw: RawSources, days: Compared) -> list[Change]:
    """Compare a version with itself, with all versions of its client, or with all clients."""
    sql = f"""
        SELECT {{}}, day, count(*) FILTER (result <> 'happy'), count(*) FROM attributed
        WHERE {SINCE} AND attribution = 'version' GROUP BY ALL ORDER BY ALL
    """
    own, clients, everyone = (
        _by_name([((*row[:-3],), *row[-3:]) for row in raw.rows(sql.format(names), **days.ends)])
        for names in ("implementation, version", "implementation", "'everyone'")
    )
    found = []
    for (client, version), of in own.items():
        if not client or version is None or _added([of[day] for day in days.now if day in of]).whole < 20:
            continue
        choices: list[tuple[str, Shares, int, int]] = [
            ("those of this version", of, 7, 100),
            ("those of the client", clients[client,], 4, 100),
            ("those of all clients", everyone["everyone",], 4, 0),
        ]
        for whose, shares, least_days, least in choices:
            before = [shares[day] for day in days.before if day in shares]
            usual = _added(_kept(before))
            if len(before) >= least_days and _added(before).whole >= least:
                if risen := _risen_days(of, usual, days):
                    now = _added([of[day] for day in risen])
                    words = (
                        f'Of the mailboxes of "{client}" "{version}", {_percent(now.share)} failed {_on(risen)}.'
                        f" {_past(before, usual, f'of {whose} ')}. Any client can claim any version."
                    )
                    who = (client, version)
                    found.append(_risen("failed mailboxes of a version", None, who, risen, now, usual, words))
                break
    return found


def _risen(
    measure: str,
    source: str | None,
    client: tuple[str | None, str | None],
    days: Sequence[date],
    now: Part,
    usual: Part,
    words: str,
) -> Change:
    size = _more(now, usual.share)
    return Change(measure, source, client, days, NO_COUNTS, (usual.share, now.share), size, words)


# ── hours without connections, sources without rows ──────────────────────────────────────────────


def _silent_hours(raw: RawSources, days: Compared) -> list[Change]:
    """All hours are over: a demo is made when its last day is."""
    sql = f"SELECT source, day, hour, count(*) FROM binds WHERE {SINCE} GROUP BY ALL"
    sources = (
        "SELECT DISTINCT source, day FROM (FROM binds SELECT source, day UNION ALL FROM ended SELECT source, day)"
    )
    counts = {(source, day, hour): number for source, day, hour, number in raw.rows(sql, **days.ends)}
    with_rows = {*raw.rows(sources)}
    found = []
    for source in sorted({source for source, _ in with_rows}):
        before = [day for day in days.before if (source, day) in with_rows]
        if len(before) < 4:
            continue
        most: list[tuple[int, date, int, int]] = []
        for day in days.now:
            silences = [
                (_on_three_of_four(counts, source, before, first, last), -first, last)
                for first, last in _empty_ranges([(source, day, hour) in counts for hour in range(24)])
            ]
            if silences and max(silences)[0] >= 20:
                expected, first, last = max(silences)
                most.append((expected, day, -first, last))
        if most:
            expected, day, first, last = max(most, key=lambda each: each[0])
            more = f" It is one of {len(most)} such days of the period." if len(most) > 1 else ""
            words = (
                f"The lake has no connections of {source} {_on([day])} from {first:02}:00 to {last + 1:02}:00 UTC:"
                f" the server had none, or it was not read.{more}"
                f" On three quarters of the days before, it had at least {expected} in these hours."
            )
            size = sum(each[0] for each in most)
            silent = [each[1] for each in most]
            found.append(
                Change("hours without connections", source, NO_CLIENT, silent, (expected, 0), NO_SHARES, size, words)
            )
    return found


def _empty_ranges(active: list[bool]) -> list[tuple[int, int]]:
    """Return the first and last hour of each range of hours without anything that no other contains."""
    edges = [-1, *(hour for hour in range(24) if active[hour]), 24]
    return [(one + 1, other - 1) for one, other in pairwise(edges) if other - one > 1]


def _on_three_of_four(
    counts: Mapping[tuple[str, date, int], int], source: str, before: list[date], first: int, last: int
) -> int:
    """Return the largest number that three quarters of the days before reach in these hours."""
    sums = sorted(sum(counts.get((source, day, hour), 0) for hour in range(first, last + 1)) for day in before)
    return sums[(len(sums) - 1) // 4]


def _without_rows(raw: RawSources, days: Compared) -> list[Change]:
    sql = f"""
        SELECT source, day, count(*) FROM (
            FROM binds SELECT source, day UNION ALL FROM ended SELECT source, day
            UNION ALL SELECT DISTINCT ON (source, digest) source, day FROM archived
            UNION ALL SELECT 'probes', day FROM phases
        ) WHERE {SINCE} GROUP BY ALL
    """
    counts: dict[str, dict[date, int]] = defaultdict(dict)
    for source, day, number in raw.rows(sql, **days.ends):
        counts[source][day] = number
    found = []
    for source, of in counts.items():
        if len(days.before) >= 7 and of.keys() >= {*days.before} and not of.keys() & {*days.now}:
            usual = sum(of[day] for day in days.before) // len(days.before)
            past = f"{_before(len(days.before))}, it had {usual:,} a day."
            words = f"The lake has no rows of {source} {_on(days.now)}. {past}"
            size = usual * len(days.now)
            found.append(
                Change("source without rows", source, NO_CLIENT, days.now, (usual, 0), NO_SHARES, size, words)
            )
    return found


# ── missing envelopes, guesses ───────────────────────────────────────────────────────────────────


def _median(numbers: Sequence[Number]) -> Number:
    """Return the median; of an even number of numbers, the lesser one of the two in the middle."""
    return sorted(numbers)[(len(numbers) - 1) // 2]


def _mad(numbers: Sequence[float]) -> float:
    median = _median(numbers)
    return _median([abs(each - median) for each in numbers])


def _missing(raw: RawSources, days: Compared) -> list[Change]:
    sql = f"""
        SELECT source, day, count(*) FILTER (NOT there), count(*) FROM holdings
        WHERE {SINCE} GROUP BY ALL ORDER BY ALL
    """
    found = []
    for source, of in _by_name(raw.rows(sql, **days.ends)).items():
        before = [of[day].share for day in days.before if day in of]
        if not before:
            continue
        usual, mad = _median(before), _mad(before)
        flagged = [
            day
            for day in days.now
            if day in of and of[day].share - usual > max(0.005, 6 * mad) and _more(of[day], usual) >= 3
        ]
        if flagged:
            now = _added([of[day] for day in flagged])
            words = (
                f"{source} lacks {now.part:,} of {now.whole:,} envelopes that were sent {_on(flagged)}"
                f" ({_percent(now.share)}). {_before(len(before))}, the median is {_percent(usual)}."
            )
            shares = (usual, now.share)
            size = _more(now, usual)
            found.append(Change("missing envelopes", source, NO_CLIENT, flagged, NO_COUNTS, shares, size, words))
    return found


def _results_of_guesses(raw: RawSources, period: Period) -> list[Change]:
    judged = guesses(raw, period)
    found = []
    for source in sorted({each.source for each in judged}):
        of = [each for each in judged if each.source == source]
        on = sorted({each.day for each in of})
        most = min(of, key=lambda each: (each.median - each.suspects, each.day, each.app_id))
        results = "result" if most.suspects == 1 else "results"
        each_one = "application" if len(on) == 1 else "application and day"
        more = f" This is the largest of {len(of)} such counts {_on(on)}, one for each {each_one}."
        words = (
            f'At {source}, {most.suspects:,} {results} of the application "{most.app_id}" {_on([most.day])} look like'
            f" guesses of codes. More than {most.threshold:,} stand out, and the median of the 7 days before is"
            f" {most.median:,}.{more if len(of) > 1 else ''}"
        )
        numbers, size = (most.median, most.suspects), sum(each.suspects - each.median for each in of)
        found.append(Change("results of guesses", source, NO_CLIENT, on, numbers, NO_SHARES, size, words))
    return found


def _one_side(raw: RawSources, days: Compared) -> list[Change]:
    sql = f"""
        SELECT source, day, count(*) FILTER (kind = 'nameplate' AND result = 'lonely') FROM ended
        WHERE {SINCE} GROUP BY ALL ORDER BY ALL
    """
    counts: dict[str, dict[date, int]] = defaultdict(dict)
    for source, day, number in raw.rows(sql, **days.ends):
        counts[source][day] = number
    found = []
    for source, of in counts.items():
        before = [of[day] for day in days.before if day in of]
        if len(before) < 4:
            continue
        usual, mad = _median(before), _mad(before)
        flagged = [day for day in days.now if of.get(day, 0) - usual > max(6 * mad, 50, usual)]
        if flagged:
            now = max(of[day] for day in flagged)
            many = f"{now:,} nameplates" if len(flagged) == 1 else f"up to {now:,} nameplates a day"
            words = (
                f"At {source}, {many} had one side only {_on(flagged)}. Somebody may try nameplates."
                f" {_before(len(before))}, the median is {usual:,}."
            )
            size = sum(of[day] - usual for day in flagged)
            found.append(
                Change("nameplates of one side", source, NO_CLIENT, flagged, (usual, now), NO_SHARES, size, words)
            )
    return found


# ── words ────────────────────────────────────────────────────────────────────────────────────────


def _spoken(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def _on(days: Sequence[date]) -> str:
    if len(days) == 1:
        return f"on {_spoken(days[0])}"
    return f"on {len(days)} days from {_spoken(min(days))} to {_spoken(max(days))}"


def _before(number: int) -> str:
    return "On the day before" if number == 1 else f"On the {number} days before"


def _past(before: Sequence[Part], usual: Part, whose: str = "") -> str:
    return f"On {len(_kept(before))} of the {len(before)} days before, {_percent(usual.share)} {whose}failed"


def _percent(share: float) -> str:
    """Return a share in percent. Only 0 is 0 %, and only 1 is 100 %."""
    text = f"{100 * share:.1f}"
    if share in {0, 1}:
        return f"{100 * share:.0f} %"
    return {"0.0": "<0.1 %", "100.0": ">99.9 %"}.get(text, f"{text} %")
