"""Claims beside the grid's rules: at the lowest validation NLL, and joint training against heads fitted afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from reproduction import afterwards, best_nll
from reproduction.cells import Cell
from reproduction.claims import CLAIMS
from reproduction.evidence import Results
from reproduction.ood import cls_norms
from reproduction.results import ResultStore
from tests.reproduction.made_claims import nothing, world


@pytest.mark.parametrize(
    ("ece", "accuracy", "states"),
    [
        (-0.01, 0.0, ("holds", "holds")),
        (0.01, -0.02, ("contradicted", "contradicted")),
        (0.0, -0.01, ("undecided",) * 2),
    ],
)
def test_the_mean_over_families_decides(ece: float, accuracy: float, states: tuple[str, str]) -> None:
    """The head moves ECE and accuracy at the epoch of the lowest NLL, and elsewhere does something else."""
    store = world(nothing)
    heads = [cell for cell in store.found if cell.head == "calattn"]
    for cell, result in store.found.items():
        head, noise = cell.head != "none", 0.0005 * (-1) ** heads.index(cell) if cell in heads else 0.0
        best = {
            "nll": 0.5,
            "brier": 0.3,
            "ece": 0.05 + head * (ece + noise),
            "accuracy": 0.7 + head * (accuracy + noise),
        }
        rows = [{"validation": best}, {"validation": best | {"nll": 0.9, "ece": 0.5 - 0.4 * head}}]
        result.log[:] = rows
    results = Results(store)
    found = [best_nll.course_of(name, results) for name in ("ece_falls", "accuracy_kept")]
    assert tuple(course.state for course in found) == states
    assert len(found[0].families) == 21
    assert found[0].mean("ece")[0] == pytest.approx(ece, abs=0.001)


GROUPS = ("clean", "severity 5")


def _documents(folder: Path, joint: float, rivals: tuple[float, ...]) -> Path:
    def write(name: str, **values: float) -> None:
        document = {"values": {method: {"clean": {"ece": {"value": value}}} for method, value in values.items()}}
        (folder / "head" / f"{name}.json").write_text(json.dumps(document))

    (folder / "head").mkdir()
    for dataset in ("cifar10", "cifar100"):
        write(f"{dataset}-deit-joint-0", joint_ts=joint)
        for seed, value in enumerate(rivals):
            write(f"{dataset}-deit-{seed}", frozen_calattn=value, taught=value)
    return folder / "head"


@pytest.mark.parametrize(("joint", "decision"), [(0.05, "worse"), (0.021, "within chance"), (0.001, "better")])
def test_joint_training_against_what_three_seeds_let_expect(tmp_path: Path, joint: float, decision: str) -> None:
    rivals = (0.0195, 0.02, 0.0205)
    found = afterwards.outcomes(_documents(tmp_path, joint, rivals))
    assert [each.decision for each in found] == [decision] * 4
    low, high = stats.t.interval(0.95, 2, loc=joint - np.mean(rivals), scale=np.std(rivals, ddof=1) * np.sqrt(4 / 3))
    assert (found[0].low, found[0].high) == pytest.approx((low, high))
    state = CLAIMS["joint_beats_posthoc"].verdict(ResultStore(tmp_path / "reproduce", "reduced")).state("last")
    assert state == {"worse": "contradicted", "within chance": "undecided", "better": "holds"}[decision]


def test_the_table_of_heads_has_means_and_a_dash_for_what_is_not_there(tmp_path: Path) -> None:
    folder = _documents(tmp_path, 0.05, (0.01, 0.02, 0.03))
    (folder / "cifar100-deit-joint-0.json").unlink()
    for path in folder.iterdir():
        values = json.loads(path.read_text())["values"]
        found = {
            name: {group: {"nll": {"value": 1.5}} | each["clean"] for group in GROUPS} for name, each in values.items()
        }
        path.write_text(json.dumps({"values": {**dict.fromkeys(("none", "ts"), next(iter(found.values()))), **found}}))
    lines = afterwards.table(folder).splitlines()
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
    cells = [Cell(dataset="cifar10", model="vit", head=head, seed=1) for head in ("none", "calattn")]
    store = world(nothing, cells=cells)
    for value, state in ((0.5, "holds"), (0.9, "contradicted")):
        for each in store.found.values():
            each.rules["last"]["cls_norm_correlation"] = value
        assert CLAIMS["cls_norm"].verdict(store).state("last") == state
