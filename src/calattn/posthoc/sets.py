"""Prediction sets: the classes that a sample may have; the true one is among them as often as asked (split conformal)."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from calattn.errors import InputError
from calattn.posthoc.base import OTHERS, Fitted, FitWarning, Learned, check_predictions
from calattn.posthoc.contests import ContestRow
from calattn.posthoc.crossfit import cross_fit, drawn_folds
from calattn.types import Predictions, row_blocks

Groups = Sequence[object] | np.ndarray | Tensor
Score = Literal["raps", "aps", "lac"]
SCORES: tuple[Score, ...] = get_args(Score)


class Estimate(NamedTuple):
    """A number and its interval."""

    value: float
    low: float
    high: float


class OfSize(NamedTuple):
    """The samples whose sets have `low` to `high` classes, and how often these hold the true one."""

    low: int
    high: int
    samples: int
    coverage: Estimate


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetReport:
    """How often sets hold the true class and how many classes they hold, with 95 % intervals; by size, class and group too."""

    samples: int
    coverage: Estimate
    size: Estimate
    empty: float
    by_size: tuple[OfSize, ...]
    by_class: dict[int, Estimate]
    by_group: dict[str, Estimate]

    @property
    def worst_class(self) -> int:
        """The class whose samples are covered least often."""
        return min(self.by_class, key=lambda each: self.by_class[each].value)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PredictionSets(Fitted):
    """The classes with a score up to the ⌈(n + 1) · coverage⌉-th smallest score of the n true classes of the fitting split.

    With p sorted from the top, o the place of a class (1, 2, …) and ρ the sum of the p before it, scores are

        lac   1 − p                                        (Sadinle et al. 2019; smallest sets, least even)
        aps   ρ + u p                                      (Romano et al. 2020; u uniform, or 1 unless `randomised`)
        raps  ρ + u p + `penalty` · max(0, o − `free`)     (Angelopoulos et al. 2021; default)

    New samples that come like those of the fitting split are covered with that probability, whatever the model; for every class
    (`per="class"`) or group (`per="group"`) on its own too. Randomised sets may be empty where the model is sure. Fit on other
    samples than the calibrator: `calibrator(validation)` of its own validation split has seen them.

    >>> g = torch.Generator().manual_seed(0)
    >>> logits = 2 * torch.randn(1000, 4, generator=g)
    >>> p = Predictions(logits=logits, labels=logits.softmax(1).multinomial(1, generator=g).squeeze(1))
    >>> sets = PredictionSets(0.9).fit(p.select(torch.arange(500)))
    >>> sets(p.select(torch.arange(500, 503))).int().tolist()
    [[0, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0]]
    >>> round(sets.judge(p.select(torch.arange(500, 1000))).coverage.value, 2)
    0.92
    """

    coverage: float = dataclasses.field(default=0.9, kw_only=False)
    score: Score = "raps"
    per: Literal["all", "class", "group"] = "all"
    randomised: bool = True
    penalty: float = 0.01
    free: int = 5
    seed: int = 0
    thresholds_: Float[Tensor, " k"] = dataclasses.field(init=False, repr=False)
    """One, or one per class, or one per group."""
    groups_: str = dataclasses.field(init=False, repr=False)
    """The groups' names, as JSON."""

    def __post_init__(self) -> None:
        for name, value, known in (("score", self.score, SCORES), ("per", self.per, ("all", "class", "group"))):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if not 0.0 < self.coverage < 1.0:
            raise InputError(f"must be between 0 and 1, got {self.coverage!r}", argument="coverage")
        if not (self.penalty >= 0.0 and self.free >= 0):
            raise ValueError(f"penalty and free must not be negative, got {self.penalty!r} and {self.free!r}")

    def fit(self, predictions: Predictions, *, groups: Groups | None = None) -> PredictionSets:  # type: ignore[override]
        """Learn the thresholds from labelled predictions; `groups` names the group of each sample."""
        check_predictions(predictions)
        predictions.check_labelled()
        return self._keep(predictions, self._fit(predictions, groups))

    def _fit(self, predictions: Predictions, groups: Groups | None = None) -> dict[str, Learned]:
        names: list[str] = []
        if self.per == "group":
            names = sorted(set(_named(groups, len(predictions))))
        part = self._parts(predictions, groups, names)
        own = self._scores(predictions, seed=self.seed + 1).gather(1, predictions.labels.cpu()[:, None]).squeeze(1)
        count = {"all": 1, "class": predictions.num_classes, "group": len(names)}[self.per]
        thresholds = torch.stack([_quantile(own[part == k], self.coverage) for k in range(count)])
        if torch.isinf(thresholds).any():
            few = f"{int(torch.isinf(thresholds).sum())} of {count} " + {"class": "classes", "group": "groups"}.get(
                self.per, "thresholds"
            )
            warnings.warn(
                FitWarning(
                    f"{few} have fewer than {math.ceil(1 / (1 - self.coverage) - 1e-9) - 1} samples, too few for a coverage of "
                    f"{self.coverage:g}: there every class is in the set",
                    remedy="fit on more samples, or ask for less",
                ),
                stacklevel=3,
            )
        return {"thresholds_": thresholds, "groups_": json.dumps(names)}

    def __call__(self, predictions: Predictions, *, groups: Groups | None = None) -> Bool[Tensor, "n c"]:
        """Which classes are in each sample's set."""
        check_predictions(predictions)
        self.check_classes(predictions.num_classes)
        self.warn_if_fitted_on(predictions.fingerprint(), stacklevel=3)
        scores = self._scores(predictions, seed=self.seed)
        if self.per == "class":
            return scores <= self.thresholds_
        part = self._parts(predictions, groups, json.loads(self.groups_))
        return scores <= self.thresholds_[part].unsqueeze(1)

    def _try_out(self, logits: Tensor) -> None:
        names = json.loads(self.groups_)
        count = {"all": 1, "class": self.num_classes_, "group": len(names)}[self.per]
        if self.thresholds_.shape != (count,) or any(not isinstance(name, str) for name in names):
            raise ValueError(f"thresholds_ has shape {list(self.thresholds_.shape)}, and groups_ names {len(names)}")
        self._scores(Predictions(logits=logits), seed=self.seed)

    def judge(self, predictions: Predictions, *, groups: Groups | None = None) -> SetReport:
        """Coverage and size on other labelled samples."""
        return judged(self(predictions, groups=groups), predictions.labels, groups)

    def _scores(self, predictions: Predictions, *, seed: int) -> Float[Tensor, "n c"]:
        probs = predictions.probs.cpu()
        u = torch.rand(len(probs), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        u = u if self.randomised else torch.ones_like(u)
        found = torch.empty(probs.shape, dtype=torch.float64)
        for rows in row_blocks(*probs.shape):
            found[rows] = self._of(probs[rows].double(), u[rows])
        return found

    def _of(self, probs: Float[Tensor, "n c"], u: Float[Tensor, " n"]) -> Float[Tensor, "n c"]:
        if self.score == "lac":
            return 1 - probs
        ordered, order = probs.sort(dim=1, descending=True, stable=True)
        scores = ordered.cumsum(dim=1) - ordered * (1 - u).unsqueeze(1)
        if self.score == "raps":
            place = torch.arange(1, probs.shape[1] + 1, dtype=probs.dtype)
            scores += self.penalty * (place - self.free).clamp_min(0)
        return torch.empty_like(scores).scatter_(1, order, scores)

    def _parts(self, predictions: Predictions, groups: Groups | None, names: list[str]) -> Int[Tensor, " n"]:
        """Which threshold is each sample's: in `fit` its class's or group's."""
        if self.per == "class":
            return predictions.labels.cpu()
        if self.per == "all":
            return torch.zeros(len(predictions), dtype=torch.int64)
        place = {name: number for number, name in enumerate(names)}
        given = _named(groups, len(predictions))
        if unknown := next((name for name in given if name not in place), None):
            raise InputError(
                f"{unknown!r} was not among the groups that sets were fitted on ({', '.join(names[:5])})",
                argument="groups",
                remedy="fit with samples of it",
            )
        return torch.tensor([place[name] for name in given])


OTHERS["prediction_sets"] = PredictionSets


def judged(sets: Bool[Tensor, "n c"], labels: Int[Tensor, " n"], groups: Groups | None = None) -> SetReport:
    """What sets are worth, against true labels."""
    labels = labels.cpu()
    inside, sizes = sets.gather(1, labels[:, None]).squeeze(1), sets.sum(dim=1).double()
    named = [] if groups is None else _named(groups, len(labels))
    of_groups = {name: torch.tensor([each == name for each in named]) for name in sorted(set(named))}
    return SetReport(
        samples=len(labels),
        coverage=_share(inside),
        size=_mean(sizes),
        empty=float((sizes == 0).double().mean()),
        by_size=tuple(_by_size(inside, sizes)),
        by_class={int(k): _share(inside[labels == k]) for k in labels.unique()},
        by_group={name: _share(inside[rows]) for name, rows in of_groups.items()},
    )


def _by_size(inside: Bool[Tensor, " n"], sizes: Float[Tensor, " n"]) -> Iterator[OfSize]:
    """Small sizes one by one, larger ones together: 0 to 5, then 6–10, 11–20, 21–40, …"""
    high, low = 0, 0
    while low <= int(sizes.max()):
        mine = (sizes >= low) & (sizes <= high)
        if mine.any():
            yield OfSize(low, high, int(mine.sum()), _share(inside[mine]))
        low, high = high + 1, high + 1 if high < 5 else 2 * high


def sets_after(
    row: ContestRow,
    validation: Predictions | None,
    several: Sequence[PredictionSets],
    *,
    folds: int = 5,
    seed: int = 0,
    groups: Groups | None = None,
) -> list[SetReport]:
    """Fit sets on top of a method of a contest, on samples that neither it nor its calibrator has seen, and judge them.

    With `validation` predictions these are calibrated out of fold, and the judged samples are others. Without, thresholds of each
    fold of the judged samples come from the other folds; what is kept is fitted on all.
    """
    if validation is not None:
        again = type(row.calibrator), row.calibrator.options()
        held_out = cross_fit(lambda: again[0](**again[1]), validation, folds=folds, seed=seed)
        return [judged(sets.fit(held_out)(row.predictions), row.predictions.labels, groups) for sets in several]
    whole = row.predictions
    fold_of = drawn_folds(whole.labels, folds=folds, seed=seed + 1)
    reports = []
    for sets in several:
        found = torch.zeros(len(whole), whole.num_classes, dtype=torch.bool)
        for fold in range(folds):
            mine = fold_of == fold
            found[mine.cpu()] = sets.fit(whole.select(~mine))(whole.select(mine))
        sets.fit(whole)
        reports.append(judged(found, whole.labels, groups))
    return reports


def _named(groups: Groups | None, n: int) -> list[str]:
    if groups is None:
        raise InputError("are needed: sets have a threshold per group", argument="groups", remedy="pass groups=…")
    values = groups.tolist() if isinstance(groups, np.ndarray | Tensor) else list(groups)
    if len(values) != n:
        raise InputError(f"has {len(values)} entries for {n} samples", argument="groups")
    return [str(value) for value in values]


def _quantile(scores: Float[Tensor, " n"], coverage: float) -> Tensor:
    """The ⌈(n + 1) · coverage⌉-th smallest, or ∞ where there are fewer."""
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return scores.kthvalue(rank).values if rank <= len(scores) else scores.new_tensor(torch.inf)


def _share(inside: Bool[Tensor, " n"]) -> Estimate:
    """With Clopper and Pearson's interval, which holds for any number of samples."""
    from scipy.special import betaincinv

    n, k = len(inside), int(inside.sum())
    low = float(betaincinv(k, n - k + 1, 0.025)) if k else 0.0
    return Estimate(k / n, low, float(betaincinv(k + 1, n - k, 0.975)) if k < n else 1.0)


def _mean(values: Float[Tensor, " n"]) -> Estimate:
    half = 1.96 * float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    middle = float(values.mean())
    return Estimate(middle, max(0.0, middle - half), middle + half)
