"""What claims count: the three phases of the scale, CLS norms, joint training against heads fitted afterwards, parameters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from reproduction import counted
from reproduction.cells import GridCell
from reproduction.claims import CLAIMS
from reproduction.counted import find_phases
from reproduction.ood import cls_norms
from reproduction.results import ResultStore
from tests.reproduction import made_claims
from tests.reproduction.made_claims import helps, nothing, world


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
    results = world(helps)
    verdict = CLAIMS["three_phases"].verdict(results)
    assert (verdict.kind, verdict.state("last"), verdict.planned) == ("not tested", "not tested", 0)
    ((part, by_rule),) = CLAIMS["three_phases"].beside(results).items()
    assert (part, len(by_rule["any"])) == ("seen, not judged", 3)
    assert CLAIMS["three_phases"].beside(world(helps, scale="paper", cells=[])) == {}


GROUPS = ("clean", "severity 5")


def _documents(folder: Path, joint: float, rivals: tuple[float, ...]) -> ResultStore:
    """A store with documents of heads beside it."""

    def write(name: str, **values: float) -> None:
        document = {"values": {method: {"clean": {"ece": {"value": value}}} for method, value in values.items()}}
        (folder / "head" / f"{name}.json").write_text(json.dumps(document))

    (folder / "head").mkdir()
    for dataset in ("cifar10", "cifar100"):
        write(f"{dataset}-deit-joint-0", joint_ts=joint)
        for seed, value in enumerate(rivals):
            write(f"{dataset}-deit-{seed}", frozen_calattn=value, taught=value)
    return ResultStore(folder / "reproduce", "reduced")


@pytest.mark.parametrize(("joint", "decision"), [(0.05, "worse"), (0.021, "within chance"), (0.001, "better")])
def test_joint_training_against_what_three_seeds_let_expect(tmp_path: Path, joint: float, decision: str) -> None:
    rivals = (0.0195, 0.02, 0.0205)
    store = _documents(tmp_path, joint, rivals)
    found = counted.joint(store, "ece")
    assert [each.decision for each in found] == [decision] * 4
    low, high = stats.t.interval(0.95, 2, loc=joint - np.mean(rivals), scale=np.std(rivals, ddof=1) * np.sqrt(4 / 3))
    assert (found[0].low, found[0].high) == pytest.approx((low, high))
    state = CLAIMS["joint_beats_posthoc"].verdict(store).state("last")
    assert state == {"worse": "contradicted", "within chance": "undecided", "better": "holds"}[decision]


def test_the_table_of_heads_has_means_and_a_dash_for_what_is_not_there(tmp_path: Path) -> None:
    store = _documents(tmp_path, 0.05, (0.01, 0.02, 0.03))
    (store.heads / "cifar100-deit-joint-0.json").unlink()
    for path in store.heads.iterdir():
        values = json.loads(path.read_text())["values"]
        found = {
            name: {group: {"nll": {"value": 1.5}} | each["clean"] for group in GROUPS} for name, each in values.items()
        }
        path.write_text(json.dumps({"values": {**dict.fromkeys(("none", "ts"), next(iter(found.values()))), **found}}))
    lines = counted.heads_table(store).splitlines()
    assert lines[-2] == "| the taught head | 1.500, 2.00 | 1.500, 2.00 | 1.500, 2.00 | 1.500, 2.00 |"
    assert lines[-1] == "| trained jointly, then one temperature | 1.500, 5.00 | 1.500, 5.00 | –, – | –, – |"


def test_the_cls_norm_is_that_before_the_last_layer_norm() -> None:
    import timm

    network = timm.create_model(
        "vit_tiny_patch16_224", num_classes=3, img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2
    )
    images = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    class Shows:
        def predict(self, model: nn.Module, _images: object) -> None:
            with torch.no_grad():
                model(torch.cat([images, images[:1]]))  # padded, as a last batch is

    found = cls_norms(nn.Sequential(network), Shows(), images)  # type: ignore[arg-type]
    network.norm, layer_norm = nn.Identity(), network.norm
    with torch.no_grad():
        expected = network.eval().forward_features(images)[:, 0].norm(dim=1)
    assert torch.allclose(found, expected, rtol=1e-4)
    assert isinstance(layer_norm, nn.LayerNorm)
    assert cls_norms(nn.Linear(2, 2), Shows(), images) is None  # type: ignore[arg-type]


def test_a_moderate_correlation_holds_and_a_strong_one_does_not() -> None:
    cells = [GridCell(dataset="cifar10", model="vit", head=head, seed=1) for head in ("none", "calattn")]
    store = world(nothing, cells=cells)
    for value, state in ((0.5, "holds"), (0.9, "contradicted")):
        for each in store.found.values():
            each.rules["last"]["cls_norm_correlation"] = value
        assert CLAIMS["cls_norm"].verdict(store).state("last") == state


def test_parameters_are_counted_on_the_papers_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeiT-S at 224 px with ten classes as timm has it, and the head by hand: 128·384 + 128 + 128 + 1."""
    import timm

    empty = ResultStore(tmp_path, "reduced")
    verdict = CLAIMS["few_parameters"].verdict(empty)
    assert verdict.kind == "does not hold"
    bare = sum(p.numel() for p in timm.create_model("deit_small_patch16_224", num_classes=10).parameters())
    deit = next(
        o
        for o in verdict.findings["any"].outcomes
        if o.cell == GridCell(dataset="cifar10", model="deit", head="calattn")
    )
    assert (deit.a, deit.b, deit.effect) == (bare, 49_409, pytest.approx(49_409 / bare))
    monkeypatch.setattr(counted, "PARAMETER_LIMIT", 0.01)
    assert CLAIMS["few_parameters"].verdict(empty).kind == "holds"
