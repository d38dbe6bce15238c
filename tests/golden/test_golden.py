"""Refactoring proves identity: commands, a page and short runs give what is committed in `expected`.

Where the expected files were made (same CPU and packages), numbers agree to 1e-9 and the weights' digests are equal. Elsewhere
float32 sums end in other bits: numbers agree to 1e-4. At most 4e-5 was seen with other vector instructions (SSE, AVX2).
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.golden.documents import EXPECTED, NAMES, differences, machine, made, portable

REMEDY = "if the change is meant, `python -m tests.golden.rewrite` writes the expected files again"


def expected(name: str) -> Any:
    return json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_as_committed(name, tmp_path):
    known, found = expected(name), made(name, tmp_path)
    if expected("machine") == machine():
        changes = list(differences(known, found, rel=1e-9))
    else:
        changes = list(differences(portable(known), portable(found), rel=1e-4))
    assert not changes, "\n".join([f"{name}: {len(changes)} differences; {REMEDY}", *changes[:20]])


def test_nothing_else_is_committed():
    assert {path.stem for path in EXPECTED.iterdir()} == {*NAMES, "machine"}


def test_a_difference_is_found():
    known = expected("evaluate-three")
    ece = known["results"][0]["metrics"]["ece"]
    assert not list(differences(known, copy.deepcopy(known), rel=0.0))
    for place, key, value in (
        (ece, "value", ece["value"] * (1 + 1e-8)),
        (ece, "value", float("nan")),
        (ece, "value", None),
        (ece, "new", 0.0),
        (known, "bins", 16),
        (known, "bins", 15.0),
        (known, "command", "compare"),
        (known, "results", []),
    ):
        before = copy.deepcopy(known)
        old = dict(place)
        place[key] = value
        assert len(list(differences(before, known, rel=1e-9))) == 1, key
        place.clear()
        place.update(old)
