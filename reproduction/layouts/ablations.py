"""The paper's ablations: what the head reads, what it predicts, and the weight of the Brier term."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reproduction import paper
from reproduction.cells import TRANSFORMERS, Cell, ScaleName
from reproduction.layouts.parts import (
    DATASETS,
    LAYOUTS,
    MODELS,
    beside,
    of,
    quantity,
    with_head,
)
from reproduction.tables import Block, Column, Layout


@LAYOUTS.register("feature_ablation")
def _feature_ablation(_scale: ScaleName) -> Layout:
    inputs = {"cls": "CLS", "patch_mean": "mean of patches", "concat": "both"}
    where = [(dataset, model) for dataset in ("cifar100", "cifar10") for model in TRANSFORMERS]
    return Layout(
        name="feature_ablation",
        title="What the CalAttn head reads (CE)",
        header=("data set", "network"),
        columns=tuple(Column(title=title, keys={"features": features}) for features, title in inputs.items()),
        blocks=tuple(
            Block(
                header=(DATASETS[d], MODELS[m]),
                keys=of(d, m),
                cells=tuple((Cell(dataset=d, model=m, loss="ce", head="calattn", features=f),) for f in inputs),
            )
            for d, m in where
        ),
        quantities=(
            *(quantity(metric) for metric in ("ece", "adaptive_ece", "smooth_ece")),
            *(beside(*pair) for pair in (("ece", "post"), ("accuracy", "pre"), ("nll", "pre"), ("nll", "post"))),
        ),
        notes=(
            "The paper does not name the loss: five of its six CLS rows are its cross-entropy cells, so ours are of that loss.",
            "The paper does not say whether before or after temperature scaling; its numbers stand beside those before.",
            "Swin has no CLS token: CLS is its pooled representation, which is the mean of its patches after the last norm.",
        ),
        intervals=True,
    )


@LAYOUTS.register("dirichlet")
def _dirichlet(scale: ScaleName) -> Layout:
    model = "vit" if scale == "paper" else "deit"
    heads = {"calattn": "scalar (CalAttn)", "dirichlet": "Dirichlet"}
    return Layout(
        name="dirichlet",
        title="A scalar against a Dirichlet head on CIFAR-100 (CE+BS)",
        header=("data set", "network"),
        columns=tuple(Column(title=title, keys={"head": head}) for head, title in heads.items()),
        blocks=(
            Block(
                header=(DATASETS["cifar100"], MODELS[model]),
                keys=of("cifar100", "vit"),
                cells=tuple((Cell(dataset="cifar100", model=model, head=head),) for head in heads),
            ),
        ),
        quantities=(
            *(quantity(metric) for metric in ("accuracy", "ece", "adaptive_ece", "nll", "parameters_added")),
            beside("ece", "post"),
            beside("nll", "post"),
        ),
        paper_network="ViT-B",
        notes=("The paper's network is ViT-B; it does not say whether before or after temperature scaling.",),
        intervals=True,
    )


def _lambda(name: str, head: str) -> Callable[[ScaleName], Layout]:
    def layout(_scale: ScaleName) -> Layout:
        weights = [w / 10 for w in range(11)]
        return Layout(
            name=name,
            title=f"Weight λ of the Brier term, {'with' if head == 'calattn' else 'without'} CalAttn",
            header=("data set", "network"),
            columns=tuple(Column(title=f"λ = {w:g}", keys=_range(name, w)) for w in weights),
            blocks=(
                Block(
                    header=(DATASETS["cifar100"], with_head("deit", head)),
                    keys=of("cifar100", "deit", head),
                    cells=tuple((Cell(dataset="cifar100", model="deit", head=head, weight=w),) for w in weights),
                ),
            ),
            quantities=(
                *(
                    quantity(metric, "post", stated=True)
                    for metric in ("ece", "adaptive_ece", "classwise_ece", "smooth_ece")
                ),
                beside("ece"),
                beside("accuracy"),
                beside("nll", "post"),
            ),
            notes=(
                "Where the paper prints one number for a range of λ, it stands beside each λ of the range.",
                f"λ = 0 is cross-entropy{' with CalAttn, as in feature_ablation' if head == 'calattn' else ''}, trained once "
                "more under this name (REPRODUCTION.md: Networks trained twice).",
            ),
            intervals=True,
        )

    return layout


def _range(name: str, weight: float) -> Mapping[str, paper.Cell] | None:
    """The range of λ under which the paper's table has this weight; None where it leaves it out."""
    ranges = {(row["lambda_min"], row["lambda_max"]) for row in paper.paper_table(name).rows}
    for low, high in sorted(ranges, key=str):
        assert isinstance(low, float)
        assert isinstance(high, float)
        if low <= weight <= high:
            return {"lambda_min": low, "lambda_max": high}
    return None


LAYOUTS.add("lambda_cebs", _lambda("lambda_cebs", "none"))
LAYOUTS.add("lambda_full", _lambda("lambda_full", "calattn"))
