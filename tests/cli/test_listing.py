"""`calattn list` names everything that is registered, with a line about each."""

from __future__ import annotations

import pytest
import timm
import timm.optim

from calattn.backbones import BACKBONES
from calattn.cli.listing import KINDS, sentence_of
from calattn.data import DATASETS
from calattn.engine.optim import SCHEDULES
from calattn.heads import HEADS
from calattn.losses import LOSSES
from calattn.metrics import METRICS
from calattn.posthoc import CALIBRATORS
from calattn.runs.recipes import RECIPES
from tests.cli_runner import invoke, ran, refused

REGISTERED = {
    "backbones": BACKBONES,
    "losses": LOSSES,
    "heads": HEADS,
    "calibrators": CALIBRATORS,
    "metrics": METRICS,
    "recipes": RECIPES,
    "datasets": DATASETS,
    "optimizers": timm.optim.list_optimizers(),
    "schedules": SCHEDULES,
}


@pytest.mark.parametrize("what", KINDS)
def test_everything_registered_is_listed_with_a_line(capsys, what):
    result = ran(capsys, "list", what, "--json")
    items = {item["name"]: item["description"] for item in result.json["items"]}
    assert set(REGISTERED[what]) <= set(items)
    assert [name for name, line in items.items() if not line.strip() or "\n" in line] == []
    shown = [line for line in invoke(capsys, "list", what).out.splitlines() if line[0] != " "]
    assert {line.split()[0] for line in shown} == set(items)


def test_without_a_word_it_says_what_there_is(capsys):
    result = invoke(capsys, "list")
    assert [line.split()[0] for line in result.out.splitlines()] == list(KINDS)


def test_patterns(capsys):
    names = [item["name"] for item in invoke(capsys, "list", "losses", "focal", "--json").json["items"]]
    assert names == ["focal", "dual_focal"]
    names = [item["name"] for item in invoke(capsys, "list", "losses", "focal*", "--json").json["items"]]
    assert names == ["focal"]
    assert "see them with: calattn list losses" in refused(capsys, "list", "losses", "nothing")


def test_timm_only_when_asked(capsys):
    few = invoke(capsys, "list", "backbones", "--json").json["items"]
    some = invoke(capsys, "list", "backbones", "convnext_*", "--json").json["items"]
    every = invoke(capsys, "list", "backbones", "--all", "--json").json["items"]
    assert not any(item["name"].startswith("convnext") for item in few)
    assert {item["name"] for item in some} == set(timm.list_models("convnext_*"))
    assert len(every) >= len(timm.list_models())


def test_first_sentences():
    def documented():
        """Kull et al. 2019, Eq. 3, on
        two lines. And more.

        And much more."""

    assert sentence_of(documented) == "Kull et al. 2019, Eq. 3, on two lines"
