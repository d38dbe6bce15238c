"""One pass over [n, c] predictions, down to a few numbers a sample: everything but classwise ECE is computed from these.

A block of rows is shifted, exponentiated and summed while it sits in cache. The largest entry is taken out of the sum, so
that `odds = (1 − p) / p` keeps full relative precision where the confidence p itself rounds to one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from calattn import checks
from calattn.errors import InputError
from calattn.types import Kind, row_blocks

# 4 MB of float32 a block. Measured over 50,000 × 1,000: 138 ms, against 197 ms with 1 MB, where the calls themselves show.
_BLOCK = 1 << 20
_CACHED = 1 << 18  # of which a core's own cache holds all: two passes over such a block take little more than one
SCORES = frozenset({"nll", "brier"})  # columns that are made where they are wanted


def at_once(device: torch.device, on_cpu: int, more: int = 64) -> int:
    """How much is worked on at a time: a CPU has a cache, a GPU loses time with every call."""
    return on_cpu if device.type == "cpu" else on_cpu * more


class LabelledValues(NamedTuple):
    """What is reduced: [n, c] logits, with the scale that they are divided by, or probabilities; and labels."""

    values: Float[Tensor, "n c"]
    labels: Int[Tensor, " n"]
    kind: Kind
    scale: Float[Tensor, " n"] | None = None

    @classmethod
    def of(cls, values: checks.ArrayLike, labels: checks.ArrayLike, kind: Kind, scale: Tensor | None = None) -> Self:
        """Checked: what Predictions hold is, anyway."""
        values = checks.matrix(values, kind)
        return cls(values, checks.labels_for(labels, "labels", values.shape, values.device), kind, scale)

    def select(self, rows: slice) -> Self:
        scale = None if self.scale is None else self.scale[rows]
        return self._replace(values=self.values[rows], labels=self.labels[rows], scale=scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Per-sample facts: confidence p of the event, odds (1 − p)/p, whether it happened, NLL and Brier of the row.

    NLL and Brier score are NaN where they were not wanted.
    """

    confidence: Float[Tensor, " n"]  # in the input's precision, so that bin edges mean what the caller sees
    odds: Float[Tensor, " n"]
    correct: Bool[Tensor, " n"]
    nll: Float[Tensor, " n"]
    brier: Float[Tensor, " n"]

    def __len__(self) -> int:
        return self.confidence.shape[0]

    def _each(self, change: Callable[[Tensor], Tensor]) -> Columns:
        return Columns(**{name: change(each) for name, each in vars(self).items()})

    def cpu(self) -> Columns:
        return self._each(lambda values: values.cpu())

    def select(self, rows: slice | Bool[Tensor, " n"]) -> Columns:
        return self._each(lambda values: values[rows])

    def compact(self) -> Columns:
        """17 bytes a sample instead of 29: sums of float32 are good enough for resampling, and odds are float32 anyway."""
        return self._each(lambda values: values.float() if values.dtype == torch.float64 else values)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """Checked rows in cache. `rest`, and what follows from it, is made when asked for, in a buffer that the next block uses."""

    rows: slice
    kind: Kind
    given: Float[Tensor, "r c"]
    labels: Int[Tensor, " r"]
    scale: Float[Tensor, " r"] | None
    top: Int[Tensor, " r"]
    largest: Float[Tensor, " r"]
    buffer: Float[Tensor, "b c"]

    @functools.cached_property
    def _made(self) -> tuple[Tensor, Tensor]:
        rest = self.buffer[: len(self.given)]
        if self.kind == "probs":
            rest.copy_(self.given)
        else:
            torch.sub(self.given, self.largest.unsqueeze(1), out=rest)
            if self.scale is not None:
                rest /= self.scale.unsqueeze(1)
            # Below its smallest normal number float32 arithmetic is up to 100 times slower: such terms are taken as 0,
            # which is what they are beside the 1 of the largest entry.
            torch.threshold_(rest, math.log(torch.finfo(rest.dtype).tiny), -torch.inf).exp_()
        at_label = rest.gather(1, self.labels.unsqueeze(1)).squeeze(1)
        return rest.scatter_(1, self.top.unsqueeze(1), 0.0), at_label

    @property
    def rest(self) -> Float[Tensor, "r c"]:
        """The unnormalised probabilities, with the top entry set to zero."""
        return self._made[0]

    @property
    def at_label(self) -> Float[Tensor, " r"]:
        """The label's unnormalised probability."""
        return self._made[1]

    @functools.cached_property
    def top_value(self) -> Float[Tensor, " r"]:
        return self.largest if self.kind == "probs" else torch.ones_like(self.largest)

    @functools.cached_property
    def others(self) -> Float[Tensor, " r"]:
        """Row sums of `rest`, in float64."""
        return _wide_sums(self.rest)

    @functools.cached_property
    def total(self) -> Float[Tensor, " r"]:
        """What `rest` and `top_value` are to be divided by."""
        if self.kind == "probs":
            return torch.ones_like(self.top_value)
        return (self.top_value + self.others).to(self.top_value.dtype)

    def small(self, wanted: frozenset[str]) -> dict[str, Tensor]:
        """What the columns are made of: one number a row, which outlive the block. To be taken before `rest` is changed."""
        found = {"top_value": self.top_value, "correct": self.top == self.labels, "others": self.others}
        if wanted:
            found["at_label"] = self.at_label
        if "brier" in wanted:
            found["norm"] = torch.linalg.vector_norm(self.rest, dim=1)
        if self.kind == "logits" and "nll" in wanted:
            shift = self.given.gather(1, self.labels.unsqueeze(1)).squeeze(1) - self.largest
            found["shift"] = shift if self.scale is None else shift / self.scale
        return found

    def event(self, target: int) -> dict[str, Tensor]:
        """Of class `target`: its unnormalised probability, that of all other classes, and whether it is the label."""
        if not 0 <= target < self.rest.shape[1]:
            problem = f"is {target}, outside [0, {self.rest.shape[1] - 1}]"
            raise InputError(problem, argument="target", remedy="name a class of the predictions, counted from 0")
        own, top = self.rest[:, target].double(), self.top_value.double()
        first = self.top == target  # `rest` has a zero there
        others = torch.where(first, self.others, (self.others - own).clamp_min(0) + top)
        return {"own": torch.where(first, top, own), "not_own": others, "happened": self.labels == target}

    def columns(self, target: int | None = None, wanted: frozenset[str] = SCORES) -> Columns:
        """What these rows come down to."""
        return _columns(self.small(wanted) | ({} if target is None else self.event(target)), self.kind)


def columns_of(
    given: LabelledValues,
    *,
    target: int | None = None,
    visit: Callable[[Block], None] | None = None,
    wanted: frozenset[str] = SCORES,
) -> Columns:
    """Reduces logits or probabilities; `visit` sees each block on the way.

    With `target`, confidence, odds and correct are of the event "the label is `target`" with confidence P(target), for a
    one-vs-rest or binary reading; NLL and Brier score stay those of the row.
    """
    values, labels, kind, _ = given
    if kind == "probs" and target is None and visit is None and not wanted and values.device.type == "cpu":
        return _columns(_confidence_alone(checks.widened(values), labels, checks.sum_tolerance(values.dtype)), kind)
    parts = []
    for block in blocks_of(given, kind):
        parts.append(block.small(wanted) | ({} if target is None else block.event(target)))
        if visit is not None:
            visit(block)
    return _columns({name: torch.cat([part[name] for part in parts]) for name in parts[0]}, kind)


def _confidence_alone(values: Tensor, labels: Tensor, tolerance: float) -> dict[str, Tensor]:
    """`Block.small` of probabilities where nothing but the largest matters, on as many cores as torch uses.

    Read as unsigned integers, floating-point numbers keep their order, but for anything negative and for NaN, which are larger
    than all others. So one search for the maximum finds these too, and row sums are all that is left to check.
    """
    n, width = values.shape
    array, unsigned = values.numpy(), values.numpy().view(f"u{values.element_size()}")
    top, largest, sums = np.empty(n, np.int64), np.empty(n, array.dtype), np.empty(n, array.dtype)

    @np.errstate(all="ignore")  # what overflows or is NaN is found below
    def search(span: slice) -> None:
        for start in range(span.start, span.stop, step):
            rows = slice(start, min(start + step, span.stop))
            np.argmax(unsigned[rows], axis=1, out=top[rows])
            largest[rows] = array[np.arange(rows.start, rows.stop), top[rows]]
            # torch.sum would start threads of its own from each of ours
            np.einsum("ij->i", array[rows], out=sums[rows])

    step = max(1, _CACHED // width)
    spans = list(row_blocks(n, width, max(_BLOCK, -(-n // torch.get_num_threads()) * width)))
    with ThreadPoolExecutor(len(spans)) as pool:
        list(pool.map(search, spans))
    found = torch.from_numpy(largest)
    if not bool(((found > 0) & (torch.from_numpy(sums).sub_(1).abs_() <= tolerance)).all()):
        for rows in row_blocks(n, width, _BLOCK):
            top_here, found[rows] = _checked_top(values[rows], tolerance, "probs", rows.start)
            top[rows] = top_here.numpy()
    others = torch.zeros(n, dtype=torch.float64)
    certain = (found >= 1).nonzero().squeeze(1)  # only there the other entries matter
    for part in certain.split(max(1, _BLOCK // width)):
        others[part] = _wide_sums(values[part].scatter_(1, torch.from_numpy(top)[part].unsqueeze(1), 0.0))
    return {"top_value": found, "correct": torch.from_numpy(top) == labels, "others": others}


def blocks_of(whole: LabelledValues, name: str = "probs", most_rows: int | None = None) -> Iterator[Block]:
    """Cached blocks of checked predictions, `most_rows` at most. One buffer serves all: a block is good until the next one."""
    values, labels, kind, scale = whole
    n, width = values.shape
    most = at_once(values.device, _BLOCK)
    if most_rows is not None:
        most = min(most, at_once(values.device, most_rows * width, 16))
    buffer = None
    for rows in row_blocks(n, width, most):
        given = checks.widened(values[rows])
        if buffer is None:
            buffer = torch.empty_like(given, memory_format=torch.contiguous_format)
        if kind == "probs":
            top, largest = _checked_top(given, checks.sum_tolerance(values.dtype), name, rows.start)
        else:
            top = row_argmax(given)
            largest = given.gather(1, top.unsqueeze(1)).squeeze(1)
            checks.finite_rows(largest, name, given, rows.start)
        yield Block(
            rows=rows,
            kind=kind,
            given=given,
            labels=labels[rows],
            scale=None if scale is None else scale[rows],
            top=top,
            largest=largest,
            buffer=buffer,
        )


def _wide_sums(values: Float[Tensor, "r c"]) -> Float[Tensor, " r"]:
    """Row sums in float64: rounded to float32 they are the same whatever the order of the classes.

    On the CPU, `sum(dtype=torch.float64)` would allocate a widened copy for each block, and the small results kept between such
    copies fragment the heap: 350 MB were held at the end of 50,000 × 1,000.
    """
    if values.device.type != "cpu":
        return values.sum(dim=1, dtype=torch.float64)
    sums, step = values.new_empty(len(values), dtype=torch.float64), max(1, _BLOCK // (4 * values.shape[1]))
    wide = values.new_empty(min(step, len(values)), values.shape[1], dtype=torch.float64)
    for start in range(0, len(values), step):
        part = wide[: len(values) - start]
        torch.sum(part.copy_(values[start : start + step]), dim=1, out=sums[start : start + step])
    return sums


def _columns(parts: dict[str, Tensor], kind: Kind) -> Columns:
    """The per-sample facts in float64; each formula avoids the cancellation that `Σp² − 2p_y + 1` has near p_y = 1."""
    others, top_value, correct = parts["others"], parts["top_value"].double(), parts["correct"]
    given = parts["top_value"].dtype
    nll = brier = others.new_tensor(math.nan).expand(len(others))
    total = 1 + others if kind == "logits" else torch.ones_like(others)
    top_prob = top_value / total
    if "shift" in parts:
        nll = others.log1p() - parts["shift"].double()
    elif "at_label" in parts and kind == "probs":
        nll = -parts["at_label"].double().log()
    if "norm" in parts:
        squares, label_prob = (parts["norm"].double() / total).square(), parts["at_label"].double() / total
        missed = 1 - top_prob if kind == "probs" else others / total
        brier = torch.where(correct, missed.square() + squares, top_prob.square() + squares + 1 - 2 * label_prob)
    odds = _odds(top_prob, others, kind, given)
    if "own" in parts:  # of an event, in place of the predicted class's
        own, not_own, correct = parts["own"], parts["not_own"], parts["happened"]
        top_prob = own / (own + not_own) if kind == "logits" else own
        odds = (not_own / own).float().double() if kind == "logits" else _odds(own, not_own, kind, given)
    return Columns(confidence=top_prob.to(given), odds=odds, correct=correct, nll=nll, brier=brier)


def _odds(confidence: Tensor, others: Tensor, kind: Kind, given: torch.dtype) -> Float[Tensor, " n"]:
    """(1 − p)/p, what samples are ranked by, rounded to float32 so that equal confidences are tied however they came about.

    From logits that is Σ exp(ℓ_k − ℓ_top). Probabilities are taken at their word, p alone, but for a p of 1, which may be
    rounded: there the other entries have the digits, and the odds are no more than those of the next number below 1.
    """
    if kind == "logits":
        return others.float().double()
    step = torch.finfo(given).eps / 2
    ratio = torch.where(confidence < 1, (1 - confidence) / confidence, (others / confidence).clamp_max(step))
    return ratio.float().double()


def row_argmax(block: Float[Tensor, "b c"]) -> Int[Tensor, " b"]:
    """First index of each row's maximum; a NaN counts as the maximum.

    numpy's argmax is vectorised and takes the first index, torch's is neither on the CPU (5 ms against 50 ms for
    50,000 × 1,000).
    """
    if block.device.type == "cpu":
        return torch.from_numpy(block.numpy().argmax(axis=1))
    return block.max(dim=1).indices


_SOFTMAX = "if these are logits, apply softmax first"


def _checked_top(probs: Float[Tensor, "b c"], tolerance: float, name: str, offset: int) -> tuple[Tensor, Tensor]:
    """First index of each row's maximum, and the maximum, of rows of probabilities."""
    largest, _ = checks.probabilities(probs, tolerance, negative=_SOFTMAX, otherwise=_SOFTMAX, name=name, offset=offset)
    return row_argmax(probs), largest
