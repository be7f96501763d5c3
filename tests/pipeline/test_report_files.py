"""The page, the CSV files, the JSON file and the summary of a report: the same numbers, and nobody's markup."""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import io
import json
import re
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import restante
from restante.cli import report_output
from restante.cli.report_output import write_report
from restante.common.csv_fields import FORMULA
from restante.common.errors import StoreError
from restante.pipeline.report.changes.measure import quoted
from restante.pipeline.report.csv_file import as_csv
from restante.pipeline.report.files import report_files
from restante.pipeline.report.json_file import as_json
from restante.pipeline.report.model import (
    Changes,
    Figure,
    RankedBars,
    Report,
    ReportChange,
    ReportColumn,
    ReportTable,
    Section,
    ValueKind,
    figures,
)
from restante.pipeline.report.page import page
from restante.pipeline.report.summary import ISOLATE, POP, summary
from restante.pipeline.report.values import compact, csv_text, share, size, spoken_value
from support.markup import Tags, plain
from support.pipeline import reports

WHOLE, HOSTILE = reports.whole(), reports.hostile()
REPORTS = {"whole": WHOLE, "hostile": HOSTILE}
every_report = pytest.mark.parametrize("name", REPORTS)

CSS = (Path(restante.__file__).parent / "pipeline/report/web/page.css").read_text()

BIDI = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]")


@every_report
def test_a_page_is_well_formed_and_its_references_have_a_target(name: str) -> None:
    content = page(REPORTS[name])
    tags = Tags(content.decode())
    assert content.startswith(b"<!DOCTYPE html>")
    assert len(tags.texts["h1"]) == 1
    ids = tags.values("id")
    assert len(ids) == len(set(ids))
    named = {*tags.values("aria-labelledby"), *tags.values("aria-describedby")}
    links = {each.removeprefix("#") for each in tags.values("href") if each != "data:,"}
    assert named | links <= set(ids)


@every_report
def test_a_page_names_nothing_outside_of_it_and_has_no_script(name: str) -> None:
    content = page(REPORTS[name]).decode()
    tags = Tags(content)
    assert "script" not in tags.texts
    assert all(each == "data:,," or each.startswith(("#", "data:,")) for each in tags.values("href"))
    for attribute in ("src", "srcset", "action", "style", "data", "poster", "formaction", "xlink:href"):
        assert tags.values(attribute) == []
    assert not [each for _, each, _ in tags.attributes if each.startswith("on")]
    assert not re.search(r"url\(|@import", content)


def test_the_policy_allows_the_page_s_own_style_only() -> None:
    content = page(WHOLE).decode()
    policy = next(value for value in Tags(content).values("content") if "default-src" in value)
    [style] = re.findall(r"<style>(.*?)</style>", content, re.DOTALL)
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert dict(rule.strip().split(" ", 1) for rule in policy.split(";")) == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": f"'sha256-{hashed}'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert content.index("Content-Security-Policy") < content.index("<title>")


def test_no_text_of_a_client_steers_the_page_or_a_terminal() -> None:
    content = page(HOSTILE).decode()
    assert "<script" not in content
    assert not BIDI.search(content)
    lines = "\n".join(summary(HOSTILE))
    for shown in (content, lines.replace(ISOLATE, "").replace(POP, "")):
        assert all(each.isprintable() or each == "\n" for each in shown)
    assert "&lt;script&gt;alert(1)" in content
    assert "$policy ${style} $$" in plain(content.encode())
    assert "(empty)" in content


def test_every_text_of_a_client_is_isolated_from_the_direction_of_the_page() -> None:
    content = page(HOSTILE).decode()
    assert len(Tags(content).texts["bdi"]) > 4 * len(reports.HOSTILE)
    for name in reports.HOSTILE:
        assert f"<bdi>{escape(quoted(name).text)}</bdi> is new." in content


@every_report
def test_each_figure_has_a_sentence_and_a_table_with_its_rows(name: str) -> None:
    content = page(REPORTS[name]).decode()
    for _, figure in figures(REPORTS[name]):
        _, _, after = content.partition(f'<div id="{figure.id}"')
        table = after[after.index("<table>") : after.index("</table>") + len("</table>")]
        assert figure.reading in after[: after.index("<table>")]
        [head, *rows] = [["".join(cell.itertext()) for cell in row] for row in ET.fromstring(table).iter("tr")]
        columns = figure.table.columns
        assert head == [column.head for column in columns]
        assert rows == [
            [spoken_value(value, column.kind, column.absent) for column, value in zip(columns, row, strict=True)]
            for row in figure.table.rows
        ]


def test_a_page_says_what_is_missing_what_changed_and_what_there_is_nothing_of() -> None:
    said = plain(page(WHOLE))
    assert "November 2026" in said
    assert "Made at 2026-12-01 06:30 UTC" in said
    assert "The lake has no records before 3 November 2026." in said
    assert "27.0 % , before 10.0 % 2026-11-01 to 2026-11-03, 3 days Failures grew. See All ." in said
    assert "What counts as a change A rule." in said
    assert "Nothing The lake has no records of this in the period." in said
    assert "Failed ! 27.0 %" in said


def test_an_empty_report_is_a_page() -> None:
    empty = Report(WHOLE.period, WHOLE.made, ())
    Tags(page(empty).decode())
    assert list(summary(empty)) == ["November 2026"]


@every_report
def test_the_same_report_gives_the_same_files(name: str) -> None:
    assert list(report_files(REPORTS[name])) == list(report_files(REPORTS[name]))


def test_the_page_is_written_after_all_that_lies_beside_it() -> None:
    names = [path for path, _ in report_files(WHOLE)]
    assert names[-2:] == [PurePosixPath("2026-11.json"), PurePosixPath("2026-11.html")]
    assert PurePosixPath("2026-11/changes.csv") in names
    assert len(names) == 3 + len(list(figures(WHOLE)))
    assert PurePosixPath("2026-11/results.csv") in names


def test_csv_and_json_have_the_same_values() -> None:
    said = json.loads(as_json(WHOLE))
    found = {each["id"]: each for section in said["sections"] for each in section["figures"]}
    for _, figure in figures(WHOLE):
        rows = list(csv.DictReader(io.StringIO(as_csv(figure.table).decode(), newline="")))
        names = [column.name for column in figure.table.columns]
        assert [list(row) for row in rows] == [names] * len(figure.table.rows)
        for row, of_json, cells in zip(rows, found[figure.id]["rows"], figure.table.rows, strict=True):
            assert list(row.values()) == [csv_text(value) or "" for value in cells]
            assert list(row.values()) == [_as_csv(value) for value in of_json.values()]


def _as_csv(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def test_the_json_has_its_version_and_units() -> None:
    said = json.loads(as_json(WHOLE))
    assert (said["format"], said["version"]) == ("restante report", 1)
    assert said["period"] == {"kind": "month", "name": "2026-11", "first": "2026-11-01", "last": "2026-11-30"}
    assert said["period_before"]["name"] == "2026-10"
    assert said["made"] == "2026-12-01T06:30:00Z"
    assert said["changes"]["found"][0]["section"] == "all"
    [waiting] = [each for section in said["sections"] for each in section["figures"] if each["id"] == "waiting"]
    assert [column["unit"] for column in waiting["columns"]] == [None, *["microseconds"] * 3]
    assert as_json(HOSTILE).isascii()


@given(st.lists(st.text(), min_size=1))
def test_no_text_in_csv_begins_like_a_formula(texts: list[str]) -> None:
    column = reports.ranked_bars().table.columns[0]
    content = as_csv(ReportTable((column,), tuple((each,) for each in texts))).decode()
    rows = [row for [row] in list(csv.reader(io.StringIO(content, newline="")))[1:]]
    assert not any(row.startswith(FORMULA) for row in rows)
    assert [row[text.startswith(FORMULA) :] for row, text in zip(rows, texts, strict=True)] == texts


@every_report
@pytest.mark.parametrize("width", [1, 40, 80, 200])
def test_the_lines_of_a_summary_fit_the_terminal(name: str, width: int) -> None:
    widths = [cell_len(line) for line in summary(REPORTS[name], width)]
    assert max(widths) <= {1: 40, 40: 40, 80: 80, 200: 80}[width]


def test_a_long_text_of_wide_characters_is_in_lines_that_the_terminal_has_room_for() -> None:
    wide = "\u5b57"
    remark = wide * 50 + " " + "a" * 45 + " b c"
    lines = list(summary(Report(WHOLE.period, WHOLE.made, (), (remark,)), 40))
    assert lines[1:] == [
        *("  " + wide * count for count in (19, 19, 12)),
        *("  " + "a" * 38, "  " + "a" * 7 + " b c"),
    ]


def test_a_page_and_the_json_say_what_the_words_of_a_section_mean() -> None:
    report = Report(
        WHOLE.period, WHOLE.made, (Section("of", "Of", (reports.plain_table(),), terms="A <word> is one."),)
    )
    content = page(report).decode()
    assert content.index("A &lt;word&gt; is one.") < content.index('class="figure"')
    assert json.loads(as_json(report))["sections"][0]["terms"] == "A <word> is one."


@pytest.mark.parametrize(("names", "is_shown"), [((1, 1), False), ((1, 7), True)])
def test_a_page_leaves_out_a_column_that_says_the_usual_in_every_row(names: tuple[int, ...], is_shown: bool) -> None:
    columns = (
        ReportColumn("app_id", "Application", ValueKind.TEXT),
        ReportColumn("names", "Names", ValueKind.COUNT, "How many names.", usual=1),
        ReportColumn("ended", "Ended", ValueKind.COUNT),
    )
    rows = tuple((f"app {at}", number, 90 + at) for at, number in enumerate(names))
    figure = Figure("a", "A", "It.", ReportTable(columns, rows), RankedBars(("app_id",), "ended"))
    tags = Tags(page(Report(WHOLE.period, WHOLE.made, (Section("of", "Of", (figure,)),))).decode())
    shown = [each for each in tags.texts["th"] if each]  # the texts of the rows' headers are in elements of their own
    assert shown == ["Application", *["Names"] * is_shown, "Ended"]
    assert ("How many names." in tags.texts.get("dd", [])) == is_shown
    assert len(tags.texts["td"]) == 2 * (1 + is_shown)
    assert as_csv(figure.table).startswith(b"app_id,names,ended\r\n")


def test_a_summary_has_the_facts_and_marks_those_to_look_at() -> None:
    lines = [" ".join(line.split()) for line in summary(WHOLE, 60)]
    assert lines[:5] == [
        *("November 2026", "The lake has no records before 3 November 2026.", ""),
        *("What changed since the month before", "! Failures grew."),
    ]
    assert "Mailboxes 1,234" in lines
    assert "! Failed 27.0 %" in lines


@pytest.mark.parametrize("width", [40, 80, 300])
def test_a_summary_isolates_names_that_are_not_ascii_and_no_others(width: int) -> None:
    lines = list(summary(HOSTILE, width))
    for line in lines:
        assert re.fullmatch(f"[^{ISOLATE}{POP}]*({ISOLATE}[^{ISOLATE}{POP}]*{POP}[^{ISOLATE}{POP}]*)*", line)
    text = "\n".join(summary(HOSTILE, 300))
    assert f'! {ISOLATE}"\u05d0\u05d1\u05d2 \u0627\u0644\u0639"{POP} is new.' in text
    assert "! \"a,b;'c'\" is new." in text
    assert text.count(ISOLATE) >= sum(not quoted(name).text.isascii() for name in reports.HOSTILE), "once a line"


def test_a_name_that_continues_on_the_next_line_is_isolated_in_both() -> None:
    name = quoted("\u05d0\u05d1\u05d2 " * 15)
    change = ReportChange("all", ("At ", name, ", 1 failed."), 0, 1, ValueKind.COUNT)
    made = Report(WHOLE.period, WHOLE.made, WHOLE.sections, (), Changes(("A rule.",), (change,)))
    lines = [line for line in summary(made, 40) if ISOLATE in line]
    assert len(lines) > 1
    assert all(line.count(ISOLATE) == line.count(POP) == 1 for line in lines)
    words = " ".join(each[2:].replace(ISOLATE, "").replace(POP, "") for each in lines)
    assert change.words.startswith(words)
    assert name.text in words


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (None, ValueKind.COUNT, "?"),
        (1234567, ValueKind.COUNT, "1,234,567"),
        (True, ValueKind.FLAG, "yes"),
        (0, ValueKind.SHARE, "0 %"),
        (1, ValueKind.SHARE, "100 %"),
        (0.00001, ValueKind.SHARE, "<0.1 %"),
        (0.99999, ValueKind.SHARE, ">99.9 %"),
        (0.1234, ValueKind.SHARE, "12.3 %"),
        (1234.56, ValueKind.AVERAGE, "1,234.6"),
        (0, ValueKind.AVERAGE, "0"),
        (0.0, ValueKind.AVERAGE, "0"),
        (0.04, ValueKind.AVERAGE, "<0.1"),
        (999, ValueKind.BYTES, "999 bytes"),
        (1_250_000, ValueKind.BYTES, "1.2 MB"),
        (999_999_999, ValueKind.BYTES, "1.0 GB"),
        (61_000_000, ValueKind.DURATION, "1 min 1 s"),
        (reports.DAYS[0], ValueKind.DAY, "2026-11-01"),
        ("x" * 1000, ValueKind.TEXT, "x" * 159 + "…"),
        ("a\x00\nb\u202e", ValueKind.TEXT, "a\\x00\\nb\\u202e"),
        ("", ValueKind.TEXT, "(empty)"),
        (" \u200c ", ValueKind.TEXT, "(blank)"),
    ],
)
def test_values_are_written_for_people(value: Any, kind: ValueKind, said: str) -> None:
    assert spoken_value(value, kind) == said


@given(st.floats(0, 1), st.integers(0, 10**18))
def test_only_nothing_is_no_percent_and_numbers_stay_short(part: float, count: int) -> None:
    assert (share(part) == "0 %") == (part == 0)
    assert (share(part) == "100 %") == (part == 1)
    assert len(size(count)) <= 9
    assert len(compact(10 ** len(str(count)))) <= 6


def test_a_table_of_ten_thousand_rows_is_a_page() -> None:
    figure = reports.ranked_bars(tuple(f"app {at}" for at in range(10_000)))
    content = page(Report(WHOLE.period, WHOLE.made, (Section("apps", "Apps", (figure,)),)))
    assert content.count(b"<tr>") == 10_002


class Palette:
    """The colours of the style sheet, in light and in dark."""

    def __init__(self) -> None:
        light, _, rest = CSS.partition("prefers-color-scheme: dark")
        dark = rest[: rest.index("}\n}")]
        self.light = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
        self.dark = {**self.light, **dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark))}


PALETTE = Palette()


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def blended(colour: str, paper: str, opacity: float) -> str:
    mixed = [
        round(int(colour[at : at + 2], 16) * opacity + int(paper[at : at + 2], 16) * (1 - opacity))
        for at in (1, 3, 5)
    ]
    return "#" + "".join(f"{each:02x}" for each in mixed)


@pytest.mark.parametrize("colours", [PALETTE.light, PALETTE.dark], ids=["light", "dark"])
def test_texts_and_graphics_have_enough_contrast(colours: dict[str, str]) -> None:
    paper = colours["paper"]
    for text in ("ink", "soft", "accent", "warning"):
        assert contrast(colours[text], paper) >= 4.5, text
    assert contrast(colours["soft"], colours["raised"]) >= 4.5
    for graphic in ("line", *(f"fill-{number}" for number in range(1, 7))):
        assert contrast(colours[graphic], paper) >= 3, graphic
    [full] = re.findall(r"\.wash\.full { fill-opacity: ([.0-9]+)", CSS)
    assert contrast(blended(colours["fill-1"], paper, float(full)), paper) >= 3


def test_dark_colours_are_for_screens_only() -> None:
    assert "@media screen and (prefers-color-scheme: dark)" in CSS
    assert PALETTE.light.keys() == PALETTE.dark.keys()
    assert PALETTE.light["paper"] != PALETTE.dark["paper"]


def test_the_style_sheet_has_every_class_that_the_page_uses() -> None:
    used = {each for value in Tags(page(WHOLE).decode()).values("class") for each in value.split()}
    assert used <= set(re.findall(r"\.([a-z][\w-]*)", CSS))


def test_the_headers_of_a_table_say_what_they_head() -> None:
    tags = Tags(page(WHOLE).decode())
    scopes = [value for tag, name, value in tags.attributes if tag == "th" and name == "scope"]
    assert len(scopes) == len(tags.texts["th"])
    rows = sum(len(figure.table.rows) for _, figure in figures(WHOLE))
    assert scopes.count("row") == rows
    assert len(tags.texts["caption"]) == len(list(figures(WHOLE)))


def test_a_figure_without_a_chart_has_a_table() -> None:
    figure: Figure = reports.plain_table()
    content = page(Report(WHOLE.period, WHOLE.made, (Section("of", "Of", (figure,)),)))
    assert b'class="chart"' not in content
    assert b"not judged" in content


def test_a_new_report_removes_only_files_that_earlier_ones_had(tmp_path: Path) -> None:
    folder = tmp_path / WHOLE.period.name
    folder.mkdir()
    (folder / "mine.csv").touch()
    (folder / "gaps.csv").symlink_to("mine.csv")
    (folder / "coverage.csv").touch()
    write_report(WHOLE, tmp_path)
    left = {path.name for path in folder.iterdir()} - {name.name for name, _ in report_files(WHOLE)}
    assert left == {"mine.csv", "gaps.csv"}


def test_a_report_removes_nothing_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "gaps.csv").touch()
    (tmp_path / WHOLE.period.name).symlink_to("elsewhere")
    write_report(WHOLE, tmp_path)
    assert (tmp_path / "elsewhere" / "gaps.csv").exists()


def test_old_files_stay_if_a_report_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / WHOLE.period.name
    folder.mkdir()
    (folder / "gaps.csv").touch()
    monkeypatch.setattr(report_output, "write_output", Mock(side_effect=OSError(errno.ENOSPC, "")))
    with pytest.raises(StoreError, match="cannot write"):
        write_report(WHOLE, tmp_path)
    assert [path.name for path in folder.iterdir()] == ["gaps.csv"]
