"""One pass over [n, c] predictions, down to a few numbers a sample: everything but classwise ECE is computed from these.

A block of rows is shifted, exponentiated and summed while it sits in cache. The largest entry is taken out of the sum, so
that `odds = (1 − p) / p` keeps full relative precision where the confidence p itself rounds to one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from calattn import checks
from calattn.errors import BadRowError, InputError
from calattn.types import Kind, row_blocks

# 4 MB of float32 a block. Measured over 50,000 × 1,000: 138 ms, against 197 ms with 1 MB, where the calls themselves show.
_BLOCK = 1 << 20


def at_once(device: torch.device, on_cpu: int) -> int:
    """How much is worked on at a time: a CPU has a cache, a GPU waits for every call."""
    return on_cpu if device.type == "cpu" else on_cpu << 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Per-sample facts: confidence p of the event, odds (1 − p)/p, whether it happened, NLL and Brier of the row."""

    confidence: Float[Tensor, " n"]  # in the input's precision, so that bin edges mean what the caller sees
    odds: Float[Tensor, " n"]
    correct: Bool[Tensor, " n"]
    nll: Float[Tensor, " n"]
    brier: Float[Tensor, " n"]

    def __len__(self) -> int:
        return self.confidence.shape[0]

    def cpu(self) -> Columns:
        return Columns(**{name: values.cpu() for name, values in vars(self).items()})

    def select(self, rows: slice | Bool[Tensor, " n"]) -> Columns:
        return Columns(**{name: values[rows] for name, values in vars(self).items()})

    def compact(self) -> Columns:
        """17 bytes a sample instead of 29: sums of float32 are good enough for resampling, and odds are float32 anyway."""
        return dataclasses.replace(self, odds=self.odds.float(), nll=self.nll.float(), brier=self.brier.float())

    @classmethod
    def cat(cls, parts: list[Columns]) -> Columns:
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})


@dataclasses.dataclass
class Block:
    """Rows in cache: `rest` holds the unnormalised probabilities with the top entry set to zero."""

    rows: slice
    rest: Float[Tensor, "r c"]
    top: Int[Tensor, " b"]
    top_value: Float[Tensor, " b"]
    others: Float[Tensor, " b"]  # row sums of `rest`, in float64
    norm: Float[Tensor, " b"]  # Euclidean norms of the rows of `rest`
    total: Float[Tensor, " b"]  # what `rest` and `top_value` are to be divided by
    at_label: Float[Tensor, " b"]  # the label's unnormalised probability
    shift: Float[Tensor, " b"] | None  # the label's logit less the largest, divided by the scale
    labels: Int[Tensor, " b"]

    def without_rest(self) -> Block:
        """The small parts alone: `rest` is a buffer that the next block overwrites."""
        return dataclasses.replace(self, rest=self.rest[:0])

    def columns(self, target: int | None = None) -> Columns:
        """What these rows come down to."""
        kind: Kind = "probs" if self.shift is None else "logits"
        columns = _columns([self], kind)
        return columns if target is None else _of_event(columns, [self.event(target)], kind)

    def event(self, target: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of class `target`: its unnormalised probability, that of all other classes, and whether it is the label."""
        if not 0 <= target < self.rest.shape[1]:
            problem = f"is {target}, outside [0, {self.rest.shape[1] - 1}]"
            raise InputError(problem, argument="target", remedy="name a class of the predictions, counted from 0")
        own, top = self.rest[:, target].double(), self.top_value.double()
        first = self.top == target  # `rest` has a zero there
        return (
            torch.where(first, top, own),
            torch.where(first, self.others, (self.others - own).clamp_min(0) + top),
            self.labels == target,
        )


def columns_of(
    values: checks.ArrayLike,
    labels: checks.ArrayLike,
    kind: Kind,
    *,
    scale: Tensor | None = None,
    target: int | None = None,
    visit: Callable[[Block], None] | None = None,
) -> Columns:
    """Checks [n, c] logits or probabilities against labels and reduces them; `visit` sees each block on the way.

    With `target`, confidence, odds and correct are of the event "the label is `target`" with confidence P(target), for a
    one-vs-rest or binary reading; NLL and Brier score stay those of the row.
    """
    values = checks.matrix(values, kind)
    labels = checks.labels_for(labels, "labels", values.shape, values.device)
    blocks, events = [], []
    for block in blocks_of(values, labels, kind, scale, kind):
        blocks.append(block.without_rest())
        if target is not None:
            events.append(block.event(target))
        if visit is not None:
            visit(block)
    columns = _columns(blocks, kind)
    return columns if target is None else _of_event(columns, events, kind)


def blocks_of(
    values: Tensor,
    labels: Tensor,
    kind: Kind,
    scale: Tensor | None = None,
    name: str = "probs",
    most_rows: int | None = None,
) -> Iterator[Block]:
    """Cached blocks of checked predictions, `most_rows` at most. One buffer serves all: a block is good until the next one."""
    n, width = values.shape
    most = at_once(values.device, _BLOCK if most_rows is None else min(_BLOCK, most_rows * width))
    buffer = None
    for rows in row_blocks(n, width, most):
        given = checks.widened(values[rows])
        if buffer is None or buffer.shape != given.shape:
            buffer = torch.empty_like(given, memory_format=torch.contiguous_format)
            wide = buffer.new_empty(min(len(given), max(1, _BLOCK // (4 * width))), width, dtype=torch.float64)
        top = row_argmax(given)
        largest = given.gather(1, top.unsqueeze(1))
        checks.finite_rows(largest.squeeze(1), name, given, rows.start)
        own = labels[rows].unsqueeze(1)
        shift = None
        if kind == "logits":
            shift = given.gather(1, own) - largest
            torch.sub(given, largest, out=buffer)
            if scale is not None:
                buffer /= scale[rows].unsqueeze(1)
                shift = shift / scale[rows].unsqueeze(1)
            # Below its smallest normal number float32 arithmetic is up to 100 times slower: such terms are taken as 0,
            # which is what they are beside the 1 of the largest entry.
            torch.threshold_(buffer, math.log(torch.finfo(buffer.dtype).tiny), -torch.inf).exp_()
            top_value = torch.ones_like(largest).squeeze(1)
        else:
            _check_probs(given, name, rows.start)
            buffer.copy_(given)
            top_value = largest.squeeze(1)
        at_label = buffer.gather(1, own).squeeze(1)
        buffer.scatter_(1, top.unsqueeze(1), 0.0)
        others = _wide_sums(buffer, wide)
        if kind == "probs":
            _check_sum(top_value.double() + others, checks.sum_tolerance(values.dtype), name, rows.start)
        yield Block(
            rows=rows,
            rest=buffer,
            top=top,
            top_value=top_value,
            others=others,
            norm=torch.linalg.vector_norm(buffer, dim=1),
            total=(top_value + others).to(given.dtype) if kind == "logits" else torch.ones_like(top_value),
            at_label=at_label,
            shift=None if shift is None else shift.squeeze(1),
            labels=labels[rows],
        )


def _wide_sums(values: Float[Tensor, "b c"], wide: Float[Tensor, "w c"]) -> Float[Tensor, " b"]:
    """Row sums in float64: rounded to float32 they are the same whatever the order of the classes.

    `wide` is scratch space. `sum(dtype=torch.float64)` would allocate a widened copy for each block, and the small results kept
    between such copies fragment the heap: 350 MB were held at the end of 50,000 × 1,000.
    """
    sums = values.new_empty(len(values), dtype=torch.float64)
    step = len(wide)
    for start in range(0, len(values), step):
        part = wide[: min(step, len(values) - start)]
        torch.sum(part.copy_(values[start : start + step]), dim=1, out=sums[start : start + step])
    return sums


def _columns(blocks: list[Block], kind: Kind) -> Columns:
    """The per-sample facts in float64; each formula avoids the cancellation that `Σp² − 2p_y + 1` has near p_y = 1."""

    def column(name: str) -> Tensor:
        return torch.cat([getattr(block, name) for block in blocks])

    correct = column("top") == column("labels")
    others, top_value = column("others"), column("top_value").double()
    total = 1 + others if kind == "logits" else torch.ones_like(others)
    top_prob, squares = top_value / total, (column("norm").double() / total).square()
    label_prob = column("at_label").double() / total
    if kind == "probs":
        missed, nll = 1 - top_prob, -label_prob.log()
    else:
        missed, nll = others / total, others.log1p() - column("shift").double()
    brier = torch.where(correct, missed.square() + squares, top_prob.square() + squares + 1 - 2 * label_prob)
    return Columns(
        confidence=top_prob.to(blocks[0].top_value.dtype),
        odds=_odds(top_prob, others, kind, blocks[0].top_value.dtype),
        correct=correct,
        nll=nll,
        brier=brier,
    )


def _of_event(columns: Columns, events: list[tuple[Tensor, Tensor, Tensor]], kind: Kind) -> Columns:
    """The columns with those of an event in place of the predicted class's."""
    own, others, happened = (torch.cat(parts) for parts in zip(*events, strict=True))
    confidence, given = own / (own + others) if kind == "logits" else own, columns.confidence.dtype
    odds = (others / own).float().double() if kind == "logits" else _odds(own, others, kind, given)
    return dataclasses.replace(columns, confidence=confidence.to(given), odds=odds, correct=happened)


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


def _check_probs(block: Tensor, name: str, offset: int) -> None:
    negative = block.amin(dim=1) < 0
    if negative.any():
        row = checks.first(negative)
        column = int(block[row].argmin())
        problem = f"is {float(block[row, column]):.6g}, negative"
        raise BadRowError(problem, argument=name, row=row + offset, column=column, remedy=_SOFTMAX)


def _check_sum(sums: Tensor, tolerance: float, name: str, offset: int) -> None:
    off = (sums - 1).abs() > tolerance
    if off.any():
        row = checks.first(off)
        problem = f"sums to {float(sums[row]):.9g}, not 1"
        raise BadRowError(problem, argument=name, row=row + offset, remedy=_SOFTMAX)
