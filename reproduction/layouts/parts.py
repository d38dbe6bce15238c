"""Parts of layouts: names for people, the paper's names, quantities, and the cells that stand together in many tables."""

from __future__ import annotations

from collections.abc import Callable

from calattn.registry import Registry
from reproduction import paper
from reproduction.cells import LOSSES, Cell, ScaleName
from reproduction.results import Phase
from reproduction.tables import Block, Layout, Quantity

DATASETS = {
    "cifar100": "CIFAR-100",
    "cifar10": "CIFAR-10",
    "mnist": "MNIST",
    "tiny_imagenet": "Tiny ImageNet",
    "imagenet1k": "ImageNet-1K",
}
MODELS = {
    "resnet50": "ResNet-50",
    "resnet110": "ResNet-110",
    "wide_resnet26": "WRN-26-10",
    "wide_resnet28": "WRN-28-10",
    "densenet121": "DenseNet-121",
    "vit": "ViT",
    "deit": "DeiT-S",
    "swin": "Swin-S",
}
LOSS_TITLES = {
    "ce": "CE",
    "brier": "BS",
    "mmce": "MMCE",
    "label_smoothing": "LS",
    "flsd53": "FL-53",
    "dual_focal": "DFL",
    "ce_brier": "CE+BS",
}
BACKBONES = {
    "vit": "vit_base",
    "deit": "deit_small",
    "swin": "swin_small",
    "resnet50": "resnet50_cifar",
    "resnet110": "resnet110_cifar",
    "wide_resnet26": "wide_resnet26_10_cifar",
    "wide_resnet28": "wide_resnet28_10_cifar",
    "densenet121": "densenet121_cifar",
}
"""The paper's backbone of each model, by the names that its CSV files use."""

SEEDS = (0, 1, 2)
LAYOUTS: Registry[Callable[[ScaleName], Layout]] = Registry("table layout")

METRIC_TITLES = {
    "ece": "ECE",
    "smooth_ece": "smECE",
    "adaptive_ece": "AdaECE",
    "classwise_ece": "ClassECE",
    "accuracy": "accuracy",
    "nll": "NLL",
    "brier": "Brier",
    "parameters_added": "parameters added",
}
_PHASE_TITLES: dict[Phase, str] = {
    "pre": "",
    "post": " after TS",
    "post_nll": " after TS by NLL",
    "sats": " after SATS",
}


def quantity(metric: str, phase: Phase = "pre", *, stated: bool = False) -> Quantity:
    """A quantity that the paper prints too; `stated` where its table says whether before or after temperature scaling."""
    keys: dict[str, paper.Cell] = {"metric": metric, "phase": phase} if stated else {"metric": metric}
    return Quantity(title=f"{METRIC_TITLES[metric]}{_PHASE_TITLES[phase]}", metric=metric, phase=phase, keys=keys)


def beside(metric: str, phase: Phase = "pre") -> Quantity:
    """A quantity that stands there for honesty, and that the paper does not print."""
    return Quantity(title=f"{METRIC_TITLES[metric]}{_PHASE_TITLES[phase]}", metric=metric, phase=phase)


def of(dataset: str, model: str, head: str | None = None) -> dict[str, paper.Cell]:
    """The keys of the paper's rows of a network."""
    keys: dict[str, paper.Cell] = {"dataset": dataset, "backbone": BACKBONES[model]}
    return keys if head is None else {**keys, "head": head}


def with_head(model: str, head: str) -> str:
    return MODELS[model] + (" + CalAttn" if head == "calattn" else "")


def baseline_twin_head(
    dataset: str, model: str, recipe: str = "paper", seeds: tuple[int, ...] = (0,)
) -> tuple[tuple[Cell, ...], ...]:
    """CE, CE+BS, CE+BS with CalAttn: the paper's baseline, what differs from the method by the head alone, the method."""
    return tuple(
        tuple(Cell(dataset=dataset, model=model, loss=loss, head=head, recipe=recipe, seed=seed) for seed in seeds)
        for loss, head in (("ce", "none"), ("ce_brier", "none"), ("ce_brier", "calattn"))
    )


def loss_block(dataset: str, model: str, head: str) -> Block:
    """A network under each of the seven losses."""
    return Block(
        header=(DATASETS[dataset], with_head(model, head)),
        keys=of(dataset, model, head),
        cells=tuple((Cell(dataset=dataset, model=model, loss=loss, head=head),) for loss in LOSSES),
    )
