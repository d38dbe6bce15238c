"""Optimisers and schedules, against torch's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from timm.optim import Lookahead
from torch import nn
from torch.optim import Optimizer

import calattn
from calattn.backbones import create
from calattn.engine.optim import SCHEDULES, OptimizerSettings, Schedule, ScheduleSettings, build_optimizer


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def made(model: nn.Module, name: str, *, lr: float = 0.01, weight_decay: float = 0.0, **more: Any) -> Optimizer:
    return build_optimizer(model, OptimizerSettings(name=name, lr=lr, weight_decay=weight_decay, **more))


def steps(optimizer: Optimizer, model: nn.Module, count: int = 5) -> list[torch.Tensor]:
    data = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    for _ in range(count):
        optimizer.zero_grad()
        model(data).square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_momentum_is_plain_sgd_of_torch():
    ours, theirs = network(), network()
    a = made(ours, "momentum", lr=0.1, weight_decay=5e-4, decay_all=True, options={"momentum": 0.9})
    b = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for x, y in zip(steps(a, ours), steps(b, theirs), strict=True):
        assert torch.equal(x, y)


def test_adamw_decays_matrices_only():
    ours, theirs = network(), network()
    a = made(ours, "adamw", lr=0.01, weight_decay=0.05, options={"betas": [0.9, 0.999]})
    matrices = [p for p in theirs.parameters() if p.ndim > 1]
    vectors = [p for p in theirs.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    b = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.999))
    for x, y in zip(steps(a, ours), steps(b, theirs), strict=True):
        assert torch.allclose(x, y, atol=1e-7)


def test_the_backbones_exceptions_are_kept():
    model = calattn.attach(create("vit_nano_patch8_32", num_classes=10))
    optimizer = made(model, "adamw", lr=0.01, weight_decay=0.05)
    undecayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] == 0 for p in group["params"]}
    assert id(model.backbone.pos_embed) in undecayed
    assert id(model.backbone.cls_token) in undecayed
    assert id(model.head.mlp.fc1.weight) not in undecayed


def test_fused_is_asked_for_only_where_it_exists():
    assert made(network(), "adamw", fused=True).defaults["fused"] is True
    assert "fused" not in made(network(), "lamb", fused=True).defaults


def test_lookahead_is_a_prefix_as_in_timm():
    found = made(network(), "lookahead_adamw", fused=True)
    assert isinstance(found, Lookahead)
    assert type(found._base_optimizer) is torch.optim.AdamW
    assert found.defaults["fused"] is True


def rates(name: str, *, epochs: int = 4, updates: int = 10, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD(network().parameters(), lr=1.0)
    schedule = Schedule(optimizer, ScheduleSettings(name=name, epochs=epochs, **options), updates_per_epoch=updates)
    found = []
    for update in range(epochs * updates):
        schedule.before_update(update)
        found.append(max(schedule.rates))
        if (update + 1) % updates == 0:
            schedule.after_epoch((update + 1) // updates, 1.0)
    return found


@pytest.mark.parametrize(("low", "warmup"), [(0.0, 0.0), (0.1, 1.0)])
def test_cosine_is_the_cosine_after_its_warm_up(low, warmup):
    found, climb = rates("cosine", warmup_epochs=warmup, warmup_lr=0.2, min_lr=low), int(10 * warmup)
    assert found[:climb] == pytest.approx([0.2 + 0.8 * t / 10 for t in range(climb)])
    expected = [low + (1 - low) * 0.5 * (1 + math.cos(math.pi * t / 40)) for t in range(climb, 40)]
    assert found[climb:] == pytest.approx(expected)


def test_multistep_drops_where_the_epochs_say():
    found = rates("multistep", options={"decay_milestones": [1, 3], "decay_rate": 0.1})
    assert found == pytest.approx([1.0] * 10 + [0.1] * 20 + [0.01] * 10)


@pytest.mark.parametrize("warmup", [2.0, 1.0, 0.5, 0.25])
@pytest.mark.parametrize("name", ["constant", "plateau"])
def test_warm_up_climbs_in_a_straight_line_to_the_full_rate(name, warmup):
    found = rates(name, warmup_epochs=warmup, warmup_lr=0.0)
    length = round(warmup * 10)
    assert found[:length] == pytest.approx([t / length for t in range(length)])
    assert found[length:] == pytest.approx([1.0] * (40 - length))


def test_plateau_waits_and_then_drops():
    found = rates("plateau", epochs=5, options={"patience_epochs": 2, "decay_rate": 0.1})
    assert found[0] == 1.0
    assert found[-1] == pytest.approx(0.1)


def test_plateau_does_not_count_the_epochs_of_its_warm_up():
    """With the two of the warm-up, the third would be the second in a row without a better NLL."""
    found = rates("plateau", warmup_epochs=2.0, warmup_lr=0.5, options={"patience_epochs": 0, "decay_rate": 0.1})
    assert found == pytest.approx([0.5 + 0.5 * t / 20 for t in range(20)] + [1.0] * 20)


def test_plateau_drops_when_the_nll_does_not_fall():
    optimizer = torch.optim.SGD(network().parameters(), lr=1.0)
    options = {"patience_epochs": 0, "decay_rate": 0.1}
    schedule = Schedule(optimizer, ScheduleSettings(name="plateau", epochs=9, options=options), updates_per_epoch=1)
    found = []
    for epoch, nll in enumerate([3.0, 2.0, 1.0, 1.5, 0.9], start=1):
        schedule.after_epoch(epoch, nll)
        found += schedule.rates
    assert found == pytest.approx([1.0, 1.0, 1.0, 0.1, 0.1])
    schedule.after_epoch(6, math.nan)
    schedule.after_epoch(7, 0.8)
    assert max(schedule.rates) == pytest.approx(0.1), "an epoch without an NLL says nothing"


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_restart_in_the_middle_gives_the_same_rates(name):
    whole = rates(name)
    optimizer = torch.optim.SGD(network().parameters(), lr=1.0)
    schedule = Schedule(optimizer, ScheduleSettings(name=name, epochs=4), updates_per_epoch=10)
    for epoch in (1, 2):
        schedule.after_epoch(epoch, 1.0)
    schedule.before_update(25)
    assert max(schedule.rates) == whole[25]


def test_bad_schedules():
    with pytest.raises(ValueError, match=r"schedule\.options has no 'milestones'"):
        rates("multistep", options={"milestones": [1]})
    with pytest.raises(ValueError, match=r"options\.warmup_epochs has no effect; set schedule\.warmup_epochs"):
        rates("cosine", options={"warmup_epochs": 2})
    with pytest.raises(ValueError, match="decay_milestones must be a list"):
        rates("multistep", options={"decay_milestones": 3})
