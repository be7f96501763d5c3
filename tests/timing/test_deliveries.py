"""Messages from client to client: the shared vectors in Python, and what holds for drawn transfers.

tests/pipeline/test_tables.py has the vectors in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from support.timing.deliveries import COMPARED, DELIVERY_VECTORS, computed_deliveries
from support.timing.drawn import SIDES, Path, draw
from support.timing.timelines import timeline_of


def expected(vector: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in (*COMPARED, "error_us")} for row in vector["deliveries"]]


@pytest.mark.parametrize("vector", DELIVERY_VECTORS, ids=lambda vector: str(vector["name"]))
def test_a_vector_gives_the_deliveries_that_it_expects(vector: Mapping[str, Any]) -> None:
    assert sorted(computed_deliveries(vector), key=repr) == sorted(expected(vector), key=repr)


def test_the_order_of_the_logs_changes_nothing() -> None:
    for vector in DELIVERY_VECTORS:
        turned = {**vector, "logs": vector["logs"][::-1]}
        assert sorted(computed_deliveries(turned), key=repr) == sorted(expected(vector), key=repr), vector["name"]


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 50), marks=pytest.mark.thorough)])
@pytest.mark.parametrize("traced", [True, False])
def test_each_message_s_way_is_within_its_error_whatever_the_clocks_show(traced: bool, seeds: range) -> None:
    for seed in seeds:
        dice = Random(seed)
        skews = {role: dice.uniform(-40_000, 40_000) for role in SIDES}
        paths = {role: Path(dice.expovariate(20), dice.expovariate(20), dice.expovariate(100)) for role in SIDES}
        drawn = draw(dice, skews, paths)
        found = timeline_of(drawn, traced=traced).deliveries
        ways = [way for way in drawn.ways if way.kind == "add"]
        assert {(each.role, each.phase) for each in found} == {(way.role, way.phase) for way in ways}
        for way in ways:
            (each,) = [each for each in found if (each.role, each.phase) == (way.role, way.phase)]
            (peer,) = SIDES.keys() - {way.role}
            assert each.end_to_end_us is not None
            assert each.error_us is not None
            assert abs(each.end_to_end_us - (way.heard[peer] - way.sent) * 1e6) <= each.error_us
            assert each.at_server_us == pytest.approx((way.tx - way.rx) * 1e6, abs=2)


def test_a_timeline_of_both_logs_has_the_ways_from_end_to_end() -> None:
    drawn = draw(Random(7), {"sender": 100.0, "receiver": -3.0}, dict.fromkeys(SIDES, Path(0.01, 0.01, 0.0)))
    found = timeline_of(drawn)
    for each in found.deliveries:
        command = found.commands[each.command]
        assert (command.role, command.type, command.phase) == (each.role, "add", each.phase)
    for role in SIDES:
        [delay] = [delay for delay in found.delays if (delay.role, delay.phase) == (role, "end to end")]
        own = [each.end_to_end_us for each in found.deliveries if each.role == role]
        assert (delay.count, delay.sum_us) == (len(own), sum(filter(None, own)))
        assert delay.error_us is not None
    alone = timeline_of(drawn, roles=("sender",))
    assert alone.deliveries == []
    assert "end to end" not in {delay.phase for delay in alone.delays}
