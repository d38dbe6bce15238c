"""Cross-fitting: every sample calibrated by a calibrator that has not seen it, from one set of predictions."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from calattn import checks
from calattn.errors import InputError
from calattn.posthoc.base import Calibrator, FitWarning
from calattn.types import Predictions


def cross_fit(
    factory: Callable[[], Calibrator],
    predictions: Predictions,
    *,
    folds: int | Int[Tensor, " n"] = 5,
    seed: int = 0,
) -> Predictions:
    """Out-of-fold calibrated predictions, in the order given: each fold by a fit on all the others.

    `factory` is called once a fold. `folds` is their number, drawn by `drawn_folds`, or the fold of each sample, for
    samples that belong together (one patient, one video): those must share a fold.

    >>> from calattn.posthoc import TemperatureScaling
    >>> p = Predictions(logits=torch.tensor([[2.0, 0.0]] * 8), labels=torch.tensor([0, 0, 0, 1] * 2))
    >>> cross_fit(TemperatureScaling, p, folds=2).probs[:, 0].numpy().round(2).tolist()
    [0.75, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75]
    """
    if isinstance(factory, Calibrator) or not callable(factory):
        raise ValueError(
            f"factory is {type(factory).__name__}, one calibrator; each fold needs its own: pass the class, or a function "
            "such as lambda: VectorScaling()"
        )
    predictions.check_labelled()
    fold_of = drawn_folds(predictions.labels, folds=folds, seed=seed) if isinstance(folds, int) else folds
    numbers = _checked_folds(fold_of, len(predictions)).unique().tolist()
    parts, rows = [], []
    for place, number in enumerate(numbers, start=1):
        held_out = (fold_of == number).to(predictions.labels.device)
        rest = predictions.select(~held_out)
        try:
            parts.append(factory().fit(rest)(predictions.select(held_out)))
        except ValueError as error:
            fold = f"fold {place} of {len(numbers)}, fitted on {len(rest)} samples"
            raise InputError.of(error, subject=fold) from error
        rows.append(held_out.nonzero().squeeze(1))
    return _joined(predictions, parts, torch.cat(rows).argsort())


def drawn_folds(labels: Int[Tensor, " n"], *, folds: int, seed: int = 0) -> Int[Tensor, " n"]:
    """The fold 0, …, `folds` − 1 of each sample, drawn at random so that sizes differ by at most one.

    Not stratified, because a new sample's class is random too: where every fold has the class shares of all, offsets fitted to
    chance look as if they helped. Only where chance would put all samples of a class into one fold, folds differ by at most one
    in every class. A class with one sample is missing from the fit that calibrates it, which is said in a warning.

    >>> drawn_folds(torch.tensor([0, 0, 0, 0, 1, 1]), folds=2).bincount()
    tensor([3, 3])
    """
    if isinstance(folds, bool) or not 2 <= folds <= len(labels):
        raise InputError(f"must be between 2 and the number of samples, {len(labels)}, got {folds}", argument="folds")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    fold_of = _dealt(order, folds)
    of_class = (labels * folds + fold_of).bincount(minlength=folds * (int(labels.max()) + 1)).view(-1, folds)
    counts, in_one_fold = of_class.sum(dim=1), (of_class > 0).sum(dim=1) == 1
    _warn_of_single_samples(counts)
    if (in_one_fold & (counts > 1)).any():
        return _dealt(order[labels[order].argsort(stable=True)], folds)
    return fold_of


def _dealt(order: Tensor, folds: int) -> Int[Tensor, " n"]:
    """Samples dealt out to the folds in this order: sorted by class, folds are alike in classes too."""
    fold_of = torch.empty_like(order)
    fold_of[order] = torch.arange(len(order), device=order.device) % folds
    return fold_of


def _warn_of_single_samples(counts: Tensor) -> None:
    alone = (counts == 1).nonzero().squeeze(1).tolist()
    if alone:
        which = ", ".join(map(str, alone[:5])) + (", …" if len(alone) > 5 else "")
        warnings.warn(
            f"{len(alone)} of the classes ({which}) have one sample: its own fold is fitted without that class, "
            "so its probabilities are a guess",
            FitWarning,
            stacklevel=3,
        )


def _checked_folds(fold_of: Tensor, n: int) -> Tensor:
    fold_of = checks.as_tensor(fold_of, "folds")
    if fold_of.ndim != 1 or len(fold_of) != n or fold_of.is_floating_point() or fold_of.dtype == torch.bool:
        raise ValueError(f"folds must be a number, or {n} integers, got {fold_of.dtype} {list(fold_of.shape)}")
    if len(fold_of.unique()) < 2:
        raise ValueError(f"folds puts all {n} samples into one fold, which leaves nothing to fit on; name two or more")
    return fold_of


def _joined(predictions: Predictions, parts: list[Predictions], order: Tensor) -> Predictions:
    """The parts put together; what a calibrator sets (logits, scale, stated probabilities) is theirs, the rest is kept."""

    def rows(name: str) -> Tensor | None:
        found = [getattr(part, name) for part in parts]
        return None if found[0] is None else torch.cat(found)[order]

    return predictions.replace(logits=rows("logits"), scale=rows("scale"), stated_probs=rows("stated_probs"))
