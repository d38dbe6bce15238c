"""CalAttn beside other methods: on ImageNet, against SATS, over three seeds, and against a recipe that memorises less."""

from __future__ import annotations

from reproduction.cells import TRANSFORMERS, Cell, ScaleName
from reproduction.layouts.parts import (
    DATASETS,
    LAYOUTS,
    MODELS,
    SEEDS,
    baseline_twin_head,
    beside,
    of,
    quantity,
)
from reproduction.results import Phase
from reproduction.tables import Block, Column, Layout


@LAYOUTS.register("imagenet1k")
def _imagenet1k(_scale: ScaleName) -> Layout:
    methods = (("CE", "ce", "none"), ("CE+BS", "ce_brier", "none"), ("MbLS", "mbls", "none"))
    ours = ("CE+BS + CalAttn", "ce_brier", "calattn")
    cells: list[tuple[Cell, ...] | str] = [
        (Cell(dataset="imagenet1k", model="swin", loss=loss, head=head),) for _, loss, head in (*methods, ours)
    ]
    return Layout(
        name="imagenet1k",
        title="ImageNet-1K with Swin-S",
        header=("data set", "network"),
        columns=(
            *(Column(title=title, keys={"loss": loss, "head": head}) for title, loss, head in (*methods, ours)),
            Column(title="CSM", keys={"loss": "csm", "head": "none"}),
        ),
        blocks=(
            Block(
                header=(DATASETS["imagenet1k"], MODELS["swin"]),
                keys=of("imagenet1k", "swin"),
                cells=(*cells, "trains on images mixed by a diffusion model, which are not at hand"),
            ),
        ),
        quantities=(
            *(quantity(metric) for metric in ("accuracy", "ece", "adaptive_ece")),
            *(beside(*pair) for pair in (("nll", "pre"), ("ece", "post"), ("nll", "post"))),
        ),
    )


@LAYOUTS.register("sats")
def _sats(_scale: ScaleName) -> Layout:
    models = ("wide_resnet28", "resnet50", *TRANSFORMERS)
    where = [(dataset, model) for dataset in ("cifar10", "cifar100", "tiny_imagenet") for model in models]
    return Layout(
        name="sats",
        title="SATS, temperature scaling and CalAttn on the same networks",
        header=("data set", "network"),
        columns=(
            Column(title="CE, TS", keys=None, phase="post"),
            Column(title="CE, SATS", keys={"calibrator": "sats"}, phase="sats"),
            Column(title="CE+BS, TS", keys=None, phase="post"),
            Column(title="CE+BS, SATS", keys=None, phase="sats"),
            Column(title="CE+BS + CalAttn, TS", keys={"calibrator": "temperature"}, phase="post"),
        ),
        blocks=tuple(Block(header=(DATASETS[d], MODELS[m]), keys=of(d, m), cells=_sats_cells(d, m)) for d, m in where),
        quantities=(quantity("ece"), quantity("adaptive_ece"), beside("accuracy"), beside("nll"), beside("brier")),
        notes=(
            "The paper has SATS on CNNs only and CalAttn on transformers only; it does not say which loss SATS started from.",
        ),
    )


def _sats_cells(dataset: str, model: str) -> tuple[tuple[Cell, ...] | str, ...]:
    ce, twin, head = baseline_twin_head(dataset, model)
    return (
        ce,
        ce,
        twin,
        twin,
        "a CNN has no [CLS] token, and the paper no such row" if model not in TRANSFORMERS else head,
    )


@LAYOUTS.register("three_seeds")
def _three_seeds(scale: ScaleName) -> Layout:
    model = "vit" if scale == "paper" else "deit"
    methods: tuple[tuple[str, int, Phase, str | None], ...] = (
        ("CE (baseline)", 0, "pre", "none"),
        ("CE, TS", 0, "post", None),
        ("CE, SATS", 0, "sats", None),
        ("CE+BS", 1, "pre", None),
        ("CE+BS, TS", 1, "post", None),
        ("CE+BS + CalAttn", 2, "pre", "none"),
        ("CE+BS + CalAttn, TS", 2, "post", "temperature"),
        ("CE+BS + CalAttn, SATS", 2, "sats", "sats"),
    )
    heads = ("none", "none", "calattn")
    return Layout(
        name="three_seeds",
        title="Mean and standard deviation over three seeds",
        header=("data set", "network"),
        columns=tuple(
            Column(title=title, phase=phase, keys=None if known is None else {"head": heads[i], "calibrator": known})
            for title, i, phase, known in methods
        ),
        blocks=tuple(
            Block(
                header=(DATASETS[d], MODELS[model]),
                keys=of(d, "vit"),
                cells=tuple(baseline_twin_head(d, model, seeds=SEEDS)[i] for _, i, _, _ in methods),
            )
            for d in ("cifar100", "cifar10")
        ),
        quantities=tuple(quantity(metric) for metric in ("accuracy", "nll", "brier", "ece", "smooth_ece")),
        paper_network="ViT-B",
        notes=(
            "The paper's network is ViT-B. It says that SATS alone beats the baseline, but prints no such row; ours is CE, SATS.",
        ),
    )


@LAYOUTS.register("rival")
def _rival(_scale: ScaleName) -> Layout:
    recipes = {"paper": "", "mixup": ", mixup"}
    names = ("CE", "CE+BS", "CE+BS + CalAttn")
    return Layout(
        name="rival",
        title="The recipe that memorises less (mixup 0.8, drop-path 0.1) beside the plain one",
        header=("data set", "network"),
        columns=tuple(Column(title=f"{name}{more}", keys=None) for more in recipes.values() for name in names),
        blocks=tuple(
            Block(
                header=(DATASETS[d], MODELS["deit"]),
                keys=None,
                cells=tuple(cells for recipe in recipes for cells in baseline_twin_head(d, "deit", recipe)),
            )
            for d in ("cifar100", "cifar10")
        ),
        quantities=(
            beside("accuracy"),
            *(beside(metric, phase) for metric in ("ece", "nll", "brier") for phase in ("pre", "post")),
        ),
        notes=(
            "Not a table of the paper, which does not say whether its recipes have mixup or drop-path. Columns without “mixup” "
            "are of the plain recipe of all other tables (crops and flips).",
        ),
        intervals=True,
    )
