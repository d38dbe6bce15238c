"""Mixup and cutmix: neighbours in the epoch's order share an image, and their labels in the same proportion."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from calattn.data.augment.geometry import box_mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixing:
    """Positions p and p XOR 1 are mixed: x ← λ·x + (1 − λ)·x′ (mixup), or a box of x is replaced by that of x′ (cutmix).

    The order is shuffled, so the pairs are random; and no division into even batches separates them. λ ~ Beta(α, α) is the same
    for both. Where both kinds are on (α > 0), each pair takes one of them, with probability ½. Under cutmix λ is what remains of
    the image: one minus the box's true share of it.
    """

    mixup: float
    cutmix: float
    num_classes: int
    size: tuple[int, int]

    num_draws = 4

    def __post_init__(self) -> None:
        for name in ("mixup", "cutmix"):
            alpha = getattr(self, name)
            if not (alpha >= 0 and np.isfinite(alpha)):
                raise ValueError(
                    f"{name} is the α of a Beta distribution and must be finite and ≥ 0 (0: off), got {alpha!r}"
                )
        if not self.mixup and not self.cutmix:
            raise ValueError("mixup and cutmix are both 0: there is nothing to mix")

    def derive(self, draws: Float[Tensor, "n 4"]) -> Float[Tensor, "n 6"]:
        """Weight of the own image, box (top, left, height, width), weight of the own label: from the draws of a pair's first."""
        from scipy.special import betaincinv

        kind, quantile, y, x = draws[0::2].double().numpy().T
        by_box = kind < (0.5 if self.mixup and self.cutmix else float(self.cutmix > 0))
        alpha = np.where(by_box, self.cutmix, self.mixup)
        weight = betaincinv(alpha, alpha, quantile)
        top, left, tall, wide = (np.where(by_box, side, 0.0) for side in self._box(weight, y, x))
        h, w = self.size
        own_image = np.where(by_box, 1.0, weight)
        own_label = np.where(by_box, 1.0 - tall * wide / (h * w), weight)
        pairs = np.stack([own_image, top, left, tall, wide, own_label], axis=1).astype(np.float32)
        return torch.from_numpy(pairs).repeat_interleave(2, dim=0)[: len(draws)]

    def _box(self, weight: np.ndarray, y: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """A box of share 1 − λ around a point drawn from the image, as far as it lies in the image."""
        sides = []
        for length, centre in zip(self.size, (y, x), strict=True):
            middle, half = np.floor(centre * length), np.floor(0.5 * length * np.sqrt(1.0 - weight))
            start = np.maximum(middle - half, 0.0)
            sides.append((start, np.minimum(middle + half, length) - start))
        (top, tall), (left, wide) = sides
        return top, left, tall, wide

    def __call__(
        self, images: Float[Tensor, "b c h w"], targets: Shaped[Tensor, "b ..."], derived: Float[Tensor, "b 6"]
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
        """Mixed images, and soft labels float32 [b, classes]; the targets may be classes or soft labels."""
        if len(images) % 2:
            raise ValueError(f"mixup and cutmix pair images, so a batch must be even, got {len(images)} images")
        if self.cutmix:
            inside = box_mask(derived[:, 1:5], height=images.shape[2], width=images.shape[3])
            boxed = torch.where(inside, partner(images), images)
        else:
            boxed = images
        # Pairs that take cutmix have λ = 1 here: 1·x + 0·x′ is x, to the bit.
        mixed = _weighted(boxed, derived[:, 0]) if self.mixup else boxed
        return mixed, _weighted(soft_labels(targets, self.num_classes), derived[:, 5])


def partner(rows: Shaped[Tensor, "b ..."]) -> Shaped[Tensor, "b ..."]:
    """Rows 2i and 2i + 1 exchanged.

    >>> partner(torch.arange(4)).tolist()
    [1, 0, 3, 2]
    """
    return rows.view(-1, 2, *rows.shape[1:]).flip(1).view(rows.shape)


def soft_labels(targets: Shaped[Tensor, "b ..."], num_classes: int) -> Float[Tensor, "b k"]:
    """Classes as rows with a single one; soft labels as float32."""
    if targets.is_floating_point():
        return targets.float()
    classes = torch.arange(num_classes, device=targets.device)
    return (targets.unsqueeze(1) == classes).float()


def _weighted(rows: Tensor, weight: Tensor) -> Tensor:
    """λ·x + (1 − λ)·x′ in three roundings: a fused multiply-add would make it two on some devices."""
    own = weight.view(-1, *[1] * (rows.ndim - 1))
    mine, theirs = rows * own, partner(rows) * (1 - own)
    return mine + theirs
