"""The comparisons behind each claim: which cell stands against which, on which metric, before or after which step."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence

from reproduction.cells import CIFARS, LOSSES, TRANSFORMERS, Cell, ScaleName
from reproduction.evidence import PHASE_TITLES, Arm, Comparison
from reproduction.results import Phase

SEEDS = (0, 1, 2)
CLS_WINS = (("cifar10", "deit"), ("cifar10", "vit"), ("cifar10", "swin"), ("cifar100", "swin"))
PATCH_MEAN_WINS = (("cifar100", "deit"), ("cifar100", "vit"))
"""Where the paper's ablation prints that feature's ECE in bold."""

Comparisons = Callable[[ScaleName], list[Comparison]]
Rival = tuple[str, str, Phase]
"""loss, head, phase"""


def pair_families(scale: ScaleName) -> list[tuple[str, str, str]]:
    """(data set, network, loss) of every cell that is trained with and without CalAttn.

    Below the paper's scale: DeiT with all seven losses, ViT and Swin with CE + BS, MNIST with CE + BS.
    """
    if scale == "paper":
        data = (*CIFARS, "mnist", "tiny_imagenet")
        return [(dataset, model, loss) for dataset in data for model in TRANSFORMERS for loss in LOSSES]
    families = [(dataset, "deit", loss) for dataset in CIFARS for loss in LOSSES]
    families += [(dataset, model, "ce_brier") for dataset in CIFARS for model in ("vit", "swin")]
    return families + [("mnist", model, "ce_brier") for model in TRANSFORMERS]


def seed_model(scale: ScaleName) -> str:
    """The network of the three-seed table: ViT in the paper, DeiT below its scale."""
    return "vit" if scale == "paper" else "deit"


def twins(
    families: Callable[[ScaleName], Iterable[tuple[str, str, str]]], metrics: str | Sequence[str], phase: Phase
) -> Comparisons:
    """CalAttn against the same network, loss and seed without it."""
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)

    def build(scale: ScaleName) -> list[Comparison]:
        found = []
        for (dataset, model, loss), metric in itertools.product(families(scale), names):
            head = Cell(dataset=dataset, model=model, loss=loss, head="calattn")
            family = f"{dataset} {model} {loss}" + (f", {metric}" if len(names) > 1 else "")
            found += _over_seeds(family, metric, (head.twin, phase), (head, phase))
        return found

    return build


def cifar10_families(scale: ScaleName) -> list[tuple[str, str, str]]:
    """CIFAR-10 only: the other images are told from its own."""
    return [family for family in pair_families(scale) if family[0] == "cifar10"]


def confident_families(_scale: ScaleName) -> list[tuple[str, str, str]]:
    """The cells of the table of confident mistakes."""
    return [("cifar100", model, "ce_brier") for model in TRANSFORMERS]


def features(wins: Sequence[tuple[str, str]], winner: str, phase: Phase = "pre") -> Comparisons:
    """The input that the paper marks as best against the others; below the paper's scale on DeiT alone."""

    def build(scale: ScaleName) -> list[Comparison]:
        found = []
        for dataset, model in (each for each in wins if scale == "paper" or each[1] == "deit"):
            for other in ("cls", "patch_mean", "concat"):
                # A network without a CLS token pools its patches: cls and patch_mean are the same tensor.
                if other == winner or (model == "swin" and {other, winner} == {"cls", "patch_mean"}):
                    continue
                won = Cell(dataset=dataset, model=model, loss="ce", head="calattn", features=winner)
                family = f"{dataset} {model}: {winner} against {other}"
                found += _over_seeds(family, "ece", (dataclasses.replace(won, features=other), phase), (won, phase))
        return found

    return build


def scalar_against_dirichlet(metrics: Sequence[str] = ("ece",), phase: Phase = "pre") -> Comparisons:
    """On CIFAR-100; ViT at the paper's scale, DeiT below it."""

    def build(scale: ScaleName) -> list[Comparison]:
        model = seed_model(scale)
        scalar = Cell(dataset="cifar100", model=model, head="calattn")
        other, family = dataclasses.replace(scalar, head="dirichlet"), f"cifar100 {model}: scalar against Dirichlet"
        return [each for m in metrics for each in _over_seeds(family, m, (other, phase), (scalar, phase))]

    return build


def lambdas(scale: ScaleName) -> list[Comparison]:
    """Other weights of the Brier term against 0.1, with CalAttn and temperature scaling."""
    found, default = [], Cell(dataset="cifar100", model="deit", head="calattn")
    for weight in tuple(tenth / 10 for tenth in range(2, 11)) if scale == "paper" else (0.3, 0.9):
        changed = dataclasses.replace(default, weight=weight)
        family = f"cifar100 deit: λ {weight:g} against 0.1"
        found += _over_seeds(family, "ece", (default, "post"), (changed, "post"))
    return found


def against_final(rivals: Sequence[Rival], *, tested: str = "calattn", scaled: Phase = "post") -> Comparisons:
    """CE+BS with the tested head + TS against each rival (loss, head, phase) on both CIFARs, three seeds."""

    def build(scale: ScaleName) -> list[Comparison]:
        found, model = [], seed_model(scale)
        for dataset, (loss, head, phase) in itertools.product(CIFARS, rivals):
            ours = Cell(dataset=dataset, model=model, head=tested)
            rival = dataclasses.replace(ours, loss=loss, head=head)
            family = f"{dataset} {model}: {_named('ce_brier', tested, scaled)} against {_named(loss, head, phase)}"
            found += _over_seeds(family, "ece", (rival, phase), (ours, scaled))
        return found

    return build


def final_against_baseline(_scale: ScaleName) -> list[Comparison]:
    """What the paper's table of accuracies compares: plain cross-entropy with CE + BS + CalAttn."""
    found = []
    for dataset, model in itertools.product(CIFARS, TRANSFORMERS):
        ours = Cell(dataset=dataset, model=model, head="calattn")
        rival = dataclasses.replace(ours, loss="ce", head="none")
        family = f"{dataset} {model}: CE + BS + CalAttn against ce"
        found += _over_seeds(family, "accuracy", (rival, "pre"), (ours, "pre"))
    return found


def _over_seeds(family: str, metric: str, a: tuple[Cell, Phase], b: tuple[Cell, Phase]) -> list[Comparison]:
    """b against a, once for each seed."""

    def arm(side: tuple[Cell, Phase], seed: int) -> Arm:
        return Arm(cell=dataclasses.replace(side[0], seed=seed), phase=side[1])

    return [Comparison(family=family, metric=metric, a=arm(a, seed), b=arm(b, seed)) for seed in SEEDS]


def _named(loss: str, head: str, phase: Phase) -> str:
    return ("CalAttn" if head == "calattn" else loss) + PHASE_TITLES[phase]
