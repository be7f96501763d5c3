"""The tests of the rules for Prometheus fail if a number of a rule is wrong or a label is not asked for.

A limit is wrong by a tenth, a duration before an alert by a minute, and a window by half or as much again.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.bounds import PATIENCE
from support.foreign import foreign
from support.monitoring import RULES, RULES_TEST, alert_names, recorded_names
from support.processes import run
from support.rule_mutants import expression, mutants, own_tests, rules, rules_for


def test_mutants_have_a_wrong_limit_and_a_wrong_duration_of_every_alert() -> None:
    for name in alert_names():
        kinds = [each.kind for each in mutants(name)]
        assert kinds.count("for") == 2, name
        assert kinds.count("limit") >= 2, name


def test_mutants_have_every_number_of_every_expression_too_small_and_too_large() -> None:
    texts = rules()
    assert list(texts) == [*recorded_names(), *alert_names()]
    for name, text in texts.items():
        start, end = expression(text)
        # What is left without strings, names and units. A name may contain digits.
        numbers = re.findall(r"[\d.]+", re.sub(r'"[^"]*"|[a-zA-Z_][\w:]*', " ", text[start:end]))
        found = [each for each in mutants(name) if each.kind not in {"for", "matcher"}]
        assert len(numbers) >= 1, name
        assert len(found) == 2 * len(numbers), name
        assert len({each.rules for each in found} | {rules_for(name, text)}) == len(found) + 1, name


def test_mutants_leave_out_every_label_that_is_asked_for() -> None:
    asked = {name: set(re.findall(r'"([^"]*)"', text[slice(*expression(text))])) for name, text in rules().items()}
    found = {name: [each for each in mutants(name) if each.kind == "matcher"] for name in asked}
    assert {name: len(values) for name, values in asked.items()} == {name: len(each) for name, each in found.items()}
    assert sum(len(each) for each in found.values()) >= 8


def test_every_rule_has_tests_of_its_own() -> None:
    for name in rules():
        assert re.search(rf"^ +(alertname: |- expr: '.*){name}\b", own_tests(name), re.MULTILINE), name


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*recorded_names(), *alert_names()])
def test_the_tests_of_a_rule_fail_for_each_of_its_mutants(name: str, tmp_path: Path) -> None:
    promtool = foreign("prometheus", "prometheus", "promtool")["promtool"].path
    (tmp_path / RULES_TEST.name).write_text(own_tests(name))

    def tested(text: str) -> tuple[int, str]:
        (tmp_path / RULES.name).write_text(text)
        done = run(promtool, "test", "rules", RULES_TEST.name, cwd=tmp_path, bound=PATIENCE)
        return done.returncode, done.stdout + done.stderr

    status, said = tested(rules_for(name, rules()[name]))
    assert (status, "SUCCESS" in said) == (0, True), said
    unnoticed = []
    for mutant in mutants(name):
        status, said = tested(mutant.rules)
        if status == 0:
            unnoticed.append(mutant.change)
        else:
            assert "got:" in said, f"{mutant.change}: not a test failed, but the rule cannot be read: {said}"
    assert unnoticed == []
