"""The methods that are compared: from what a network gave to calibrated logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.head.seen import Judged, Method, Seen


def temperature(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
    """The NLL-optimal single temperature, in log T by golden section: one number needs no more."""
    low, high = -3.0, 3.0
    ratio = (5**0.5 - 1) / 2

    def loss(log_t: float) -> float:
        values = functional.cross_entropy(logits.double() / np.exp(log_t), labels, reduction="none")
        return float(values.mean() if weights is None else (values * weights).sum() / weights.sum())

    for _ in range(40):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if loss(a) < loss(b) else (a, high)
    return float(np.exp((low + high) / 2))


def scaled(by: float) -> Method:
    return lambda seen: (seen.logits / by, torch.full_like(seen.logits[:, 0], float(np.log(by))))


def by_calibrator(calibrator: Any) -> Method:
    def apply(seen: Seen) -> Judged:
        out = calibrator(seen.predictions())
        log_scale = None if out.scale is None else out.scale.log().to(seen.logits)
        return out.calibrated_logits.to(seen.logits), log_scale

    return apply


def by_head(head: Any) -> Method:
    @torch.no_grad()
    def apply(seen: Seen) -> Judged:
        out = head(seen.features, seen.logits)
        return out.calibrated_logits, out.scale.log()

    return apply


def density_aware(train: Seen, validation: Seen, neighbours: int) -> Method:
    """DAC (Tomani et al., ICML 2023): T = Σ_l w_l · d_l + w_0 with w_l ≥ 0, d_l the squared distance to the k-th nearest training
    image in the normalised features of layer l; blocks, features and logits are the layers. Fitted by NLL, from small w_l and the
    best single temperature, as all others are; the authors fit the squared error and put another method behind it."""
    levels = [functional.normalize(layer, dim=1) for layer in (*train.layers, train.features, train.logits)]

    def distances(seen: Seen) -> Tensor:
        found = []
        for known, layer in zip(levels, (*seen.layers, seen.features, seen.logits), strict=True):
            asked = functional.normalize(layer, dim=1)
            nearest = [
                (2 - 2 * part @ known.T).topk(neighbours, dim=1, largest=False).values[:, -1]
                for part in asked.split(2048)
            ]
            found.append(torch.cat(nearest))
        return torch.stack(found, dim=1).double()

    near, start = distances(validation), temperature(validation.logits, validation.labels)
    spread = near.std(dim=0).clamp_min(1e-6)
    numbers = torch.full((near.shape[1] + 1,), -4.0, dtype=torch.float64, device=near.device)
    numbers[-1] = start
    numbers.requires_grad_()
    optimizer = torch.optim.LBFGS([numbers], max_iter=200, line_search_fn="strong_wolfe")

    def temperatures(values: Tensor) -> Tensor:
        return (values / spread @ numbers[:-1].exp() + numbers[-1]).clamp_min(0.05)

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(validation.logits.double() / temperatures(near).unsqueeze(1), validation.labels)
        loss.backward()
        return loss

    optimizer.step(objective)

    @torch.no_grad()
    def apply(seen: Seen) -> Judged:
        by = temperatures(distances(seen)).to(seen.logits)
        return seen.logits / by.unsqueeze(1), by.log()

    return apply
