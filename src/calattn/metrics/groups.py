"""Groups of samples, such as the cameras they come from: a group's metrics beside those of as many samples drawn from all.

Chance raises a calibration error the more the fewer samples there are, so a small group is not held against the whole. It is held
against random groups of its own size: the names of the groups are shuffled over the samples, and every metric is measured again
(a permutation test, exact whatever the metric). Where samples come in clusters, whole clusters change their group; where clusters
reach over groups, as images under several corruptions do, names are shuffled within each cluster.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.errors import InputError
from calattn.metrics.resampling.bootstrap import two_sided
from calattn.metrics.resampling.resampler import Resampler, Resampling, samples_of
from calattn.metrics.state import METRICS
from calattn.types import Predictions

if TYPE_CHECKING:
    from calattn.metrics.evaluation import Evaluation

MOST_GROUPS = 256
_ROWS = 4096  # samples added at a time


@dataclasses.dataclass(frozen=True)
class Labelling:
    """A name for each sample: `codes[i]` is its place in `names`."""

    codes: Int[Tensor, " n"]
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: object, n: int, argument: str) -> Labelling:
        """Of one value per sample: numbers or text, in an array, a tensor or a list; the first comes first.

        >>> Labelling.of(["b", "a", "b"], 3, "groups")
        Labelling(codes=tensor([0, 1, 0]), names=('b', 'a'))
        """
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        if array.shape != (n,):
            raise InputError(f"must be one value for each of {n} samples, got {list(array.shape)}", argument=argument)
        if array.dtype.kind == "O":
            array = array.astype(str)
        if array.dtype.kind == "f" and np.isnan(array).any():
            row = int(np.isnan(array).argmax())
            raise InputError("is missing", argument=argument, row=row, remedy="give every sample a value")
        names, first, codes = np.unique(array, return_index=True, return_inverse=True)
        order = first.argsort()  # numbers and the same numbers as text are resampled alike
        return cls(torch.from_numpy(order.argsort()[codes]), tuple(str(each) for each in names[order]))

    def __len__(self) -> int:
        return len(self.names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupDifference:
    """A metric of a group, and its mean over random groups of that size; `p_value` is Holm's, for all groups."""

    name: str
    value: float
    expected: float
    p_value: float
    level: float

    @property
    def difference(self) -> float:
        return self.value - self.expected

    @property
    def mark(self) -> Literal["", "better", "worse"]:
        """ "better" or "worse" than chance, or nothing."""
        if not self.p_value <= 1 - self.level:
            return ""
        return "worse" if (self.difference > 0) == (METRICS[self.name].better == "lower") else "better"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupEvaluation:
    """One group: its evaluation, and its differences from random groups of its size (none without resamples)."""

    evaluation: Evaluation
    differences: Mapping[str, GroupDifference]


def worst_first(groups: Mapping[str, GroupEvaluation]) -> dict[str, GroupEvaluation]:
    """By NLL, or by the first metric there is; beyond what the size of a group explains, where that is known."""

    def badness(name: str) -> float:
        group = groups[name]
        by = "nll" if "nll" in group.evaluation else next(iter(group.evaluation))
        found = group.differences.get(by)
        size = group.evaluation[by].value if found is None else found.difference
        return -math.inf if math.isnan(size) else size if METRICS[by].better == "lower" else -size

    return {name: groups[name] for name in sorted(groups, key=badness, reverse=True)}


def shuffled_values(source: Predictions, plan: Resampling, groups: Labelling) -> dict[str, Float[Tensor, "g r"]]:
    """Every metric of each group; in the first column of the groups as they are, in others with their names shuffled."""
    width, parts = max(1, plan.most // len(groups)), []
    generator = torch.Generator().manual_seed(plan.seed)
    drawn = _shuffles(groups, plan.clusters, plan.count, generator)
    while columns := [column for _, column in zip(range(width), drawn, strict=False)]:
        named = torch.stack(columns, dim=1)
        resampler = Resampler(plan, len(groups) * len(columns))
        for start, part, block in samples_of(source, _ROWS, plan.options.target):
            here = named[start : start + len(part)].to(part.odds.device)
            weights = torch.cat([here == group for group in range(len(groups))], dim=1)
            resampler.add(part, block, weights.to(torch.float32))
        parts.append({name: each.view(len(groups), -1) for name, each in resampler.values().items()})
    return {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}


def _shuffles(
    groups: Labelling, clusters: Tensor | None, count: int, generator: torch.Generator
) -> Iterator[Int[Tensor, " n"]]:
    """The group of every sample as it is, and then `count` shuffles of them."""
    codes = groups.codes
    yield codes.to(torch.int16)
    clusters = torch.zeros_like(codes) if clusters is None else clusters
    size = int(clusters.max()) + 1
    of_cluster = torch.zeros(size, dtype=torch.int64).scatter_(0, clusters, codes)
    whole = size > 1 and bool((of_cluster[clusters] == codes).all())
    codes, within = (of_cluster, torch.zeros_like(of_cluster)) if whole else (codes, clusters)
    order = within.argsort(stable=True)
    for _ in range(count):
        place = (within + torch.rand(len(codes), generator=generator, dtype=torch.float64)).argsort()
        drawn = torch.empty(len(codes), dtype=torch.int16)
        drawn[place] = codes[order].to(torch.int16)
        yield drawn[clusters] if whole else drawn


def group_differences(
    evaluations: Sequence[Evaluation], values: Mapping[str, Float[Tensor, "g r"]], level: float
) -> list[dict[str, GroupDifference]]:
    """For every group its differences, p-values corrected over the groups of each metric."""
    found: list[dict[str, GroupDifference]] = [{} for _ in evaluations]
    for name, draws in values.items():
        p_values = holm([two_sided(0.0, each[1:] - each[0], moved=False) for each in draws])
        for place, (each, p_value) in enumerate(zip(draws, p_values, strict=True)):
            value = evaluations[place][name].value
            # Rank cells move the value and the shuffled ones alike, by less than they are printed with.
            expected = value - float(each[0]) + float(each[1:].nanmean())
            found[place][name] = GroupDifference(
                name=name, value=value, expected=expected, p_value=p_value, level=level
            )
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p-values of m tests, the smallest times m, the next times m − 1, …, never falling.

    >>> holm([0.01, 0.04, 0.03, math.nan])
    [0.03, 0.06, 0.06, nan]
    """
    order = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    found, highest = [math.nan] * len(p_values), 0.0
    for rank, (p, place) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        found[place] = highest
    return found
