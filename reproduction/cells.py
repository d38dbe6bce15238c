"""The cells of the paper's tables: one trained network each, and the spec that trains it at a given scale."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from calattn.rules import Rule
from calattn.runs.resolving import resolve
from calattn.runs.spec import RunSpec

ScaleName = Literal["smoke", "reduced", "paper"]

TRANSFORMERS = ("vit", "deit", "swin")
CIFARS = ("cifar10", "cifar100")
LOSSES = ("ce", "brier", "mmce", "label_smoothing", "flsd53", "dual_focal", "ce_brier")
"""The seven columns of the paper's calibration tables: WD (plain cross-entropy), BS, MMCE, LS, FL-53, DFL, CE+λBS."""


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Cell:
    """What is trained: data set, network, loss, head, seed. `recipe`: "paper" (of the scale), "mixup" (the rival that
    memorises less), or "350" (the paper's schedule, SGD in two steps over 350 epochs, at the reduced scale's image size).

    >>> Cell(dataset="cifar10", model="deit", head="calattn").name
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
    def twin(self) -> Cell:
        """The same without the head: what the paper calls the baseline of a CalAttn row."""
        return dataclasses.replace(self, head="none", features="cls")


def combinations(group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of what a group of a YAML file lists, the first key slowest.

    >>> combinations({"dataset": "mnist", "model": ["vit", "deit"]})
    [{'dataset': 'mnist', 'model': 'vit'}, {'dataset': 'mnist', 'model': 'deit'}]
    """
    lists = [each if isinstance(each, list) else [each] for each in group.values()]
    return [dict(zip(group, values, strict=True)) for values in itertools.product(*lists)]


class Scale(NamedTuple):
    """How much of the paper's protocol is run. `resamples` is for the bootstrap intervals."""

    title: str
    resamples: int


SCALES: dict[ScaleName, Scale] = {
    "smoke": Scale("tiny networks on the embedded digits: does every step work?", 50),
    "reduced": Scale("32 px, 60 epochs, AdamW with one cosine (CNNs: SGD in steps): what GPU-hours allow", 1000),
    "paper": Scale("the paper's protocol: 224 px, SGD with two steps, 350 epochs", 1000),
}

BACKBONES = {
    # Not vit_small: without distillation or pretraining DeiT-S is ViT-S, weight for weight, and its rows would be DeiT's again.
    "vit": "vit_base",
    "deit": "deit_small",
    "swin": "swin_small",
    "resnet50": "resnet50_cifar",
    "resnet110": "resnet110_cifar",
    "wide_resnet26": "wide_resnet26_10_cifar",
    "wide_resnet28": "wide_resnet28_10_cifar",  # only in the table of SATS
    "densenet121": "densenet121_cifar",
}
_SMOKE = {
    "vit": ("vit_tiny_patch16_224", "{img_size: 8, patch_size: 4, embed_dim: 16, depth: 1, num_heads: 2}"),
    "deit": ("deit_tiny_patch16_224", "{img_size: 8, patch_size: 4, embed_dim: 24, depth: 1, num_heads: 2}"),
    "swin": (
        "swin_tiny_patch4_window7_224",
        "{img_size: 8, patch_size: 1, window_size: 4, embed_dim: 8, depths: [1, 1], num_heads: [1, 2]}",
    ),
}
"""Model → backbone and its options at the smoke scale, for transformers."""


@functools.cache
def spec_of(cell: Cell, scale: ScaleName) -> RunSpec:
    """The run that fills a cell. Its hash (before the machine has settled what is "auto") is the cell's identity.

    >>> spec = spec_of(Cell(dataset="cifar100", model="vit", loss="mmce", head="calattn"), "paper")
    >>> spec.model.backbone, spec.data.size, spec.train.epochs, spec.optimizer.name
    ('vit_base', 224, 350, 'momentum')
    """
    changes = [f"name={cell.name}", f"seed={cell.seed}", f"model.head={cell.head}", f"model.features={cell.features}"]
    changes += [f"loss.name={cell.loss}", *_loss_options(cell)]
    changes += [f"evaluation.checkpoints=[{', '.join(rules_of(cell))}]", "evaluation.features=true"]
    if cell.recipe == "mixup":
        changes += ["augment.mixup=0.8", "model.drop_path=0.1"]
    elif cell.recipe not in ("paper", "350"):
        raise ValueError(f"unknown recipe {cell.recipe!r} of a cell; known: paper, mixup, 350")
    base, more = _base(cell, scale)
    return resolve(base, [*more, *changes])


def rules_of(cell: Cell) -> tuple[Rule, ...]:
    """The checkpoint rules under which a cell's test images are predicted. The older recipes have two: what ran, ran so."""
    return ("last", "best-ece", "best-nll", "best-nll-ts") if cell.recipe == "350" else ("last", "best-ece")


def _loss_options(cell: Cell) -> list[str]:
    if cell.loss == "ce_brier":
        return [f"loss.options.weight={cell.weight}"]
    if cell.loss == "mbls":
        return [f"loss.options.margin={6 if cell.dataset == 'cifar10' else 10}"]
    return []


def _base(cell: Cell, scale: ScaleName) -> tuple[str, list[str]]:
    if scale == "smoke":
        return "digits", _smoke(cell)
    cnn = cell.model not in TRANSFORMERS
    changes = [f"data.name={cell.dataset}", f"model.backbone={BACKBONES[cell.model]}"]
    if scale == "paper":
        return "sgd-step", [*changes, *([] if cnn else ["data.size=224", "train.channels_last=false"])]
    if cnn:  # the two steps at the same share of 60 epochs as of 350
        return "sgd-step", [*changes, "train.epochs=60", "schedule.options.decay_milestones=[26, 43]"]
    changes += [f"data.size={_reduced_size(cell)}"]
    if cell.recipe == "350":
        return "sgd-step", [*changes, "train.batch_size=256", "train.channels_last=false"]
    return "adamw-cosine", changes


def _reduced_size(cell: Cell) -> int:
    """Native; MNIST's 28 px become 32, which Swin needs; Tiny ImageNet has 64, ImageNet is not reduced."""
    return {"tiny_imagenet": 64, "imagenet1k": 224}.get(cell.dataset, 32)


def _smoke(cell: Cell) -> list[str]:
    """Digits for every data set, told apart by how they are split; two epochs of a network with one layer."""
    split = sum(map(ord, cell.dataset)) % 1000
    changes = [f"data.split_seed={split}", "data.limit=300", "train.epochs=2", "schedule.warmup_epochs=0.5"]
    if cell.model not in TRANSFORMERS:
        return [*changes, "model.backbone=resnet8_cifar"]
    backbone, options = _SMOKE[cell.model]
    return [*changes, f"model.backbone={backbone}", f"model.options={options}"]
