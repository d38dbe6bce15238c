"""The NLL of softmax(W z + b), and its derivatives by W, a matrix or the diagonal of one, and b; in float64, block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from calattn.posthoc.base import seeded
from calattn.types import row_blocks

_ROWS_PER_CLASS = 10  # of a sample that the correlations are taken from; with fewer a pass costs less than they do
MOST_CLASSES = 2000  # the correlations take 48 C² bytes and 80 C³ operations; a second derivative, 64 C² bytes
_RIDGE = 1e-2  # on their diagonal: a sample of rows, and a shift of all b, leave some directions without any curvature


def affine(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """W z + b, row by row."""
    return torch.addcmul(bias, z, weight) if weight.ndim == 1 else torch.addmm(bias, z, weight.T)


def nll(inputs: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
    """Mean NLL of softmax(W z + b) and its gradients, block by block in float64."""
    total, by_weight, by_bias = 0.0, torch.zeros_like(weight), torch.zeros_like(bias)
    for rows in row_blocks(*inputs.shape):
        z, picked = inputs[rows].double(), labels[rows].unsqueeze(1)
        logits = affine(z, weight, bias)
        own, peak = logits.gather(1, picked), logits.amax(dim=1, keepdim=True)
        residual = logits.sub_(peak).exp_()  # one exponential: log_softmax and then exp are two, half of the time
        sums = residual.sum(dim=1, keepdim=True)
        total += float((sums.log() - (own - peak)).sum())
        residual.div_(sums).scatter_add_(1, picked, residual.new_full(picked.shape, -1.0))
        by_bias += residual.sum(dim=0)
        by_weight += residual.mul_(z).sum(dim=0) if weight.ndim == 1 else residual.T @ z
    n = len(labels)
    return total / n, by_weight / n, by_bias / n


def curvature(inputs: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """The diagonal of the NLL's second derivative in W and b, where no logit counts for more than the limit.

    p (1 − p) is next to nothing where a network is sure, and wrong: the square of the slope stands in for it there.
    """
    by_weight, by_bias = torch.zeros_like(weight), torch.zeros_like(bias)
    for rows in row_blocks(*inputs.shape):
        z = inputs[rows].double()
        probs = affine(z, weight, bias).softmax(dim=1)
        slope = probs.scatter_add(1, labels[rows].unsqueeze(1), probs.new_full((len(probs), 1), -1.0))
        spread = torch.maximum(probs * (1 - probs), slope.square())
        square = z.clamp(-limit, limit).square()
        by_bias += spread.sum(dim=0)
        by_weight += (spread * square).sum(dim=0) if weight.ndim == 1 else spread.T @ square
    return by_weight / len(inputs), by_bias / len(inputs)


def second_derivative(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """That of the NLL by a diagonal W and b: with J = (z ⊙ p, p) it is −JᵀJ, but p (1 − p) for p² within a class.

    Where p is next to one, 1 − p is the sum of the others: times the square of a logit of 1e10, a difference has no digit right.
    """
    c = len(bias)
    second = torch.zeros(2 * c, 2 * c, dtype=torch.float64, device=inputs.device)
    by_weight, by_both, by_bias = (torch.zeros_like(bias) for _ in range(3))
    for rows in row_blocks(*inputs.shape):
        z = inputs[rows].double()
        probs = affine(z, weight, bias).softmax(dim=1)
        top = probs.argmax(dim=1, keepdim=True)
        others = probs.scatter(1, top, 0.0).sum(dim=1, keepdim=True)
        spread = probs * (1 - probs).scatter(1, top, others)
        by_weight += (spread * z.square()).sum(dim=0)
        by_both += (spread * z).sum(dim=0)
        by_bias += spread.sum(dim=0)
        joint = torch.cat([z * probs, probs], dim=1)
        second.addmm_(joint.T, joint, alpha=-1.0)
    second.diagonal().copy_(torch.cat([by_weight, by_bias]))
    for offset in (c, -c):
        second.diagonal(offset).copy_(by_both)
    return second.div_(len(inputs))


def correlation(inputs: Tensor, weight: Tensor, bias: Tensor, units: Tensor, *, least: float) -> Tensor | None:
    """The Cholesky factor of the second derivative by a diagonal W and b, in the units, from a sample of rows.

    With J = (z ⊙ p, p) it is the mean of the parts that stay in a class less JᵀJ. `least` is put under its diagonal.
    None where it has no factor (logits of 1e200), or would cost more than it saves.
    """
    c = len(bias)
    if len(inputs) < _ROWS_PER_CLASS * c or c > MOST_CLASSES:
        return None
    rows = torch.randperm(len(inputs), generator=seeded(None))[: _ROWS_PER_CLASS * c].to(inputs.device)
    # The products of all pairs are most of the work, and a metric need not be exact: float32.
    pairs = torch.zeros(2 * c, 2 * c, device=inputs.device)
    within, across = torch.zeros_like(units), torch.zeros_like(bias)
    for part in rows.split(128):
        z = inputs[part].double()
        probs = affine(z, weight, bias).softmax(dim=1)
        slopes = torch.cat([z, torch.ones_like(z)], dim=1).div_(units)
        joint = torch.cat([probs, probs], dim=1).mul_(slopes)
        within += (joint * slopes).sum(dim=0)
        across += (joint[:, :c] * slopes[:, c:]).sum(dim=0)
        single = joint.float()
        pairs.addmm_(single.T, single, alpha=-1.0)
    for offset, part in ((0, within), (c, across), (-c, across)):
        pairs.diagonal(offset).add_(part)
    pairs.div_(len(rows)).diagonal().clamp_(min=least).add_(_RIDGE)
    factor, failed = torch.linalg.cholesky_ex(pairs)
    del pairs  # three such matrices at once would be the peak of a fit's memory
    return None if failed or not torch.isfinite(factor).all() else factor.double()
