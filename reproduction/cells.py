"""The cells of the paper's tables: one trained network each, and the spec that trains it at a given scale."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from calattn.rules import Rule
from calattn.runs.resolving import resolve
from calattn.runs.spec import RunSpec
from calattn.sweeps.grid import combinations as combinations  # tables and claims have groups as grids have

ScaleName = Literal["smoke", "reduced", "paper"]

TRANSFORMERS = ("vit", "deit", "swin")
CIFARS = ("cifar10", "cifar100")
LOSSES = ("ce", "brier", "mmce", "label_smoothing", "flsd53", "dual_focal", "ce_brier")
"""The seven columns of the paper's calibration tables: WD (plain cross-entropy), BS, MMCE, LS, FL-53, DFL, CE+λBS."""


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class GridCell:
    """What is trained: data set, network, loss, head, seed. `recipe`: "paper" (of the scale), "mixup" (the rival that
    memorises less), or "350" (the paper's schedule, SGD in two steps over 350 epochs, at the reduced scale's image size).

    >>> GridCell(dataset="cifar10", model="deit", head="calattn").name
    'cifar10-deit-ce_brier-calattn'
    """

    dataset: str
    model: str
    loss: str = "ce_brier"
    weight: float = 0.1
    head: str = "none"
    features: str = "cls"
    seed: int = 0
    recipe: str = "paper"

    @property
    def name(self) -> str:
        parts = [self.dataset, self.model, self.loss]
        parts += [f"lambda{self.weight:g}"] if self.loss == "ce_brier" and self.weight != 0.1 else []
        parts += [self.head] if self.head != "none" else []
        parts += [self.features] if self.features != "cls" else []
        parts += [self.recipe] if self.recipe != "paper" else []
        parts += [f"seed{self.seed}"] if self.seed else []
        return "-".join(parts)

    @property
    def twin(self) -> GridCell:
        """The same without the head: what the paper calls the baseline of a CalAttn row."""
        return dataclasses.replace(self, head="none", features="cls")


class Scale(NamedTuple):
    """How much of the paper's protocol is run. `resamples` is for the bootstrap intervals."""

    title: str
    resamples: int
    transformer: Mapping[str, Any]
    cnn: Mapping[str, Any]


_FILE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("scales.yaml").read_text(encoding="utf-8"))
SCALES: dict[ScaleName, Scale] = {name: Scale(**found) for name, found in _FILE["scales"].items()}
BACKBONES: dict[str, str] = _FILE["backbones"]


@functools.cache
def spec_of(cell: GridCell, scale: ScaleName) -> RunSpec:
    """The run that fills a cell. Its hash (before the machine has settled what is "auto") is the cell's identity.

    >>> spec = spec_of(GridCell(dataset="cifar100", model="vit", loss="mmce", head="calattn"), "paper")
    >>> spec.model.backbone, spec.data.size, spec.train.epochs, spec.optimizer.name
    ('vit_base', 224, 350, 'momentum')
    """
    if cell.recipe not in ("paper", *_FILE["recipes"]):
        raise ValueError(f"unknown recipe {cell.recipe!r} of a cell; known: paper, {', '.join(_FILE['recipes'])}")
    kind = "transformer" if cell.model in TRANSFORMERS else "cnn"
    own, recipe = getattr(SCALES[scale], kind), _FILE["recipes"].get(cell.recipe, {"set": []})
    changes = [*own["set"], *_network(cell, scale)]
    changes += recipe["set"] if scale != "smoke" or "recipe" not in recipe else []
    changes += [f"name={cell.name}", f"seed={cell.seed}", f"model.head={cell.head}", f"model.features={cell.features}"]
    changes += [f"loss.name={cell.loss}", *_loss_options(cell)]
    changes += [f"evaluation.checkpoints=[{', '.join(rules_of(cell))}]", "evaluation.features=true"]
    return resolve(own["recipe"] if scale == "smoke" else recipe.get("recipe", own["recipe"]), changes)


@functools.cache
def hash_of(cell: GridCell, scale: ScaleName) -> str:
    return spec_of(cell, scale).hash


def rules_of(cell: GridCell) -> tuple[Rule, ...]:
    """The checkpoint rules under which a cell's test images are predicted. Older cells have two: what ran, ran so."""
    newer = any(getattr(cell, field) in values for field, values in _FILE["four_rules"].items())
    return ("last", "best-ece", "best-nll", "best-nll-ts") if newer else ("last", "best-ece")


def _network(cell: GridCell, scale: ScaleName) -> list[str]:
    """At the smoke scale digits for every data set, told apart by how they are split."""
    transformer = cell.model in TRANSFORMERS
    if scale == "smoke":
        tiny = _FILE["tiny"][cell.model if transformer else "cnn"]
        return [f"data.split_seed={sum(map(ord, cell.dataset)) % 1000}", *tiny]
    size = [f"data.size={_FILE['sizes'][cell.dataset]}"] if transformer and scale == "reduced" else []
    changes = _FILE["datasets"].get(cell.dataset, {}) if scale == "reduced" else {}
    own = [*changes.get("all", []), *changes.get(cell.model, [])]
    return [f"data.name={cell.dataset}", f"model.backbone={BACKBONES[cell.model]}", *size, *own]


def _loss_options(cell: GridCell) -> list[str]:
    if cell.loss == "ce_brier":
        return [f"loss.options.weight={cell.weight}"]
    if cell.loss == "mbls":
        return [f"loss.options.margin={6 if cell.dataset == 'cifar10' else 10}"]
    return []
