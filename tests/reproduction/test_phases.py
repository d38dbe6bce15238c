"""The three phases of the scale, in logs that have them and in logs that lack one."""

from __future__ import annotations

import pytest

from reproduction.claims import CLAIMS
from reproduction.evidence import Results
from reproduction.phases import find_phases
from tests.reproduction import made_claims
from tests.reproduction.made_claims import helps, world


@pytest.mark.parametrize("broken", ["alignment", "uniform", "diverse", "crossing"])
def test_a_log_that_lacks_one_phase(broken: str) -> None:
    log = made_claims.phased_log()
    for row in log:
        scale, share = row["validation"]["scale"], row["epoch"] / 60
        if broken == "alignment" and share < 0.09:
            scale["mean"] = 1.0
        if broken == "uniform" and 0.2 < share < 0.3:
            scale["cv"] = 0.35
        if broken == "diverse" and share > 0.43:
            scale["cv"] = 0.1
        if broken == "crossing" and share > 0.43:
            scale["mean"] = 1.2
    phases = find_phases(log)
    assert phases is not None
    assert not getattr(phases, broken)
    assert [name for name in ("alignment", "uniform", "diverse", "crossing") if not getattr(phases, name)] == [broken]


def test_short_logs_and_logs_without_a_scale_have_no_phases() -> None:
    assert find_phases(made_claims.phased_log()[:19]) is None
    assert find_phases([{"epoch": e, "validation": {"ece": 0.1}} for e in range(60)]) is None


def test_below_the_papers_scale_phases_are_shown_and_not_judged() -> None:
    results = Results(world(helps))
    verdict = CLAIMS["three_phases"].verdict(results)
    assert (verdict.kind, verdict.state("last"), verdict.planned) == ("not tested", "not tested", 0)
    ((part, by_rule),) = CLAIMS["three_phases"].beside(results).items()
    assert (part, len(by_rule["any"])) == ("seen, not judged", 3)
    assert CLAIMS["three_phases"].beside(Results(world(helps, scale="paper", cells=[]))) == {}
