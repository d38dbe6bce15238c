"""Teaching: fits a `Taught` head to what a frozen network gave for distorted training images and for held-out ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
import scipy.optimize
import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from calattn import checks
from calattn.heads.base import cosine_adamw, moments
from calattn.heads.taught import Kind, Taught, anchored, scaled
from calattn.types import ModelOutput

# Where the anchor starts, and what a Gaussian prior of unit width holds level, log low, log high, gain and slope to: with a
# handful of held-out images it decides, with hundreds it is forgotten.
_PRIOR = (0.0, math.log(0.2), math.log(0.2), 0.5, 0.0)
_BOUNDS = ((-20.0, 20.0), (-15.0, 3.0), (-15.0, 3.0), (-20.0, 20.0), (-20.0, 20.0))  # wider than any prior lets them go
_ROWS_FOR_START = 10_000
MOST_OPERATIONS = 3  # of RandAugment, on an image to learn from
_MOST_DRAWS = 10  # of one image: a hundredth reading teaches little
_NOTHING = 0.0005  # nats that clean images may lose where a share of their NLL would be less
_HALVINGS = 6  # of the interval in which the weight of shifted images is looked for


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """What the network gave for some images: the head's features, raw logits, and classes [n] or soft labels [n, c]."""

    features: Float[Tensor, "n d"]
    logits: Float[Tensor, "n c"]
    targets: Shaped[Tensor, "n ..."]

    def __len__(self) -> int:
        return len(self.logits)

    def cpu(self) -> Reading:
        return Reading(self.features.cpu(), self.logits.cpu(), self.targets.cpu())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lesson:
    """How a head is taught.

    `readings` distorted training images are learned from, and `shifted` readings of held-out images are anchored on, no image
    more than ten times. `tolerance` is what clean images may lose for shifted ones, as a share of their NLL.
    """

    kind: Kind = "lowrank"
    hidden: int = 128
    readings: int = 150_000
    shifted: int = 20_000
    tolerance: float = 0.005
    steps: int = 2_500
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    dropout: float = 0.2
    batch_size: int = 512

    def __post_init__(self) -> None:
        for name in ("hidden", "readings", "shifted", "steps", "batch_size"):
            checks.positive_int(getattr(self, name), name)
        checks.positive(self.learning_rate, "learning_rate")
        checks.in_unit_interval(self.tolerance, "tolerance")
        if not (0 <= self.dropout < 1 and self.weight_decay >= 0):
            raise ValueError(f"dropout must be in [0, 1) and weight_decay ≥ 0, got {self.dropout}, {self.weight_decay}")


def draws_of(count: int, wanted: int) -> int:
    """How often each of `count` images is read so that about `wanted` readings come out.

    >>> draws_of(47_500, 150_000), draws_of(934, 150_000), draws_of(1_281_167, 150_000)
    (3, 10, 1)
    """
    return min(_MOST_DRAWS, max(1, round(wanted / count)))


def teach_head(
    distorted: Reading,
    clean: Reading,
    shifted: Reading,
    lesson: Lesson | None = None,
    *,
    seed: int = 0,
    on_step: Callable[[int, int], None] | None = None,
) -> Taught:
    """A head for the network that gave these readings, on the CPU.

    `distorted` are training images: there the network is wrong often enough for doubt to be learned. `clean` and `shifted` are
    held-out images, as they are and under distortions of other kinds: they set the five numbers of the anchor.

    >>> g = torch.Generator().manual_seed(0)
    >>> def read(n):
    ...     z = torch.randn(n, 4, generator=g)
    ...     logits = 3 * torch.randn(n, 3, generator=g)
    ...     truth = (logits / z[:, :1].exp()).softmax(1).multinomial(1, generator=g)[:, 0]  # the true log s is z₀
    ...     return Reading(z, logits, truth)
    >>> head = teach_head(read(4000), read(500), read(500), Lesson(kind="scale", hidden=16))
    >>> z = torch.tensor([[-1.0, 0, 0, 0], [1.0, 0, 0, 0]])
    >>> low, high = head(z, torch.zeros(2, 3)).scale.tolist()
    >>> low < 0.6 and high > 1.6
    True
    """
    lesson = lesson or Lesson()
    if distorted.logits.device.type == "mps":  # Apple's GPUs have no float64
        distorted, clean, shifted = (each.cpu() for each in (distorted, clean, shifted))
    for name, reading in (("distorted", distorted), ("clean", clean), ("shifted", shifted)):
        _check(reading, name, like=distorted)
    head = Taught(distorted.features.shape[1], distorted.logits.shape[1], hidden=lesson.hidden, kind=lesson.kind).to(
        distorted.logits.device
    )
    with torch.autocast(distorted.logits.device.type, enabled=False):
        _learn(head, distorted, lesson, seed=seed, on_step=on_step)
        _anchor(head, clean, shifted, lesson)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in head.state_dict().values()):
        raise ValueError(
            "the head's weights are not finite; look at the network's logits, or try a lower learning_rate"
        )
    return head.cpu()


def _check(reading: Reading, name: str, *, like: Reading) -> None:
    if reading.features.shape[1:] != like.features.shape[1:] or reading.logits.shape[1:] != like.logits.shape[1:]:
        raise ValueError(
            f"{name} has features {list(reading.features.shape)} and logits {list(reading.logits.shape)}, distorted has "
            f"{list(like.features.shape)} and {list(like.logits.shape)}; read all with one network"
        )
    if len(reading) == 0:
        raise ValueError(f"{name} holds no image; a head is taught with training images and anchored on held-out ones")
    for part in ("features", "logits"):
        bad = ~torch.isfinite(getattr(reading, part)).all(dim=1)
        if bad.any():
            raise ValueError(
                f"{part} of {name} row {checks.first(bad)} are not finite; look at the network's weights and the images"
            )


def _learn(
    head: Taught, distorted: Reading, lesson: Lesson, *, seed: int, on_step: Callable[[int, int], None] | None
) -> None:
    """Fits the MLP by the NLL of ℓ / exp(v) + V h; AdamW, its rate along one cosine, as many steps for few images as for many."""
    device = distorted.logits.device
    mean, std = moments(distorted.features)
    inputs = ((distorted.features.double() - mean) / std).float()
    # The random numbers of the first layer and the order come from the CPU: the same start on every device.
    generator = torch.Generator().manual_seed(seed)
    masks = torch.Generator(device=device).manual_seed(seed)
    bound = 1 / math.sqrt(inputs.shape[1])
    head.fc1.weight.copy_((2 * torch.rand(head.fc1.weight.shape, generator=generator) - 1) * bound)
    head.fc2.bias[0] = _best_log_temperature(distorted)
    optimizer, schedule = cosine_adamw(
        head.requires_grad_(),
        learning_rate=lesson.learning_rate,
        weight_decay=lesson.weight_decay,
        steps=lesson.steps,
        fused=device.type == "cuda",
    )
    for step, rows in enumerate(_shuffled(len(inputs), lesson, generator, device), start=1):
        seen = inputs.index_select(0, rows)
        kept = torch.rand(seen.shape, generator=masks, device=device) >= lesson.dropout
        read = head.read(seen * kept / (1 - lesson.dropout))
        logits = distorted.logits.index_select(0, rows).float()
        judged = scaled(read[:, 0], read[:, 1:], logits, lesson.kind)
        loss = _mean_nll(logits, judged, distorted.targets.index_select(0, rows))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if on_step is not None:
            on_step(step, lesson.steps)
    for parameter in head.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
    # The standardisation becomes part of the first layer: the head reads features as they are.
    weight = head.fc1.weight.double() / std
    head.fc1.bias.copy_(head.fc1.bias.double() - weight @ mean)
    head.fc1.weight.copy_(weight)


def _shuffled(count: int, lesson: Lesson, generator: torch.Generator, device: torch.device) -> Iterator[Tensor]:
    """The rows of each step: shuffled anew, and copied to the device, each time that fewer than a batch are left."""
    left = torch.empty(0, dtype=torch.int64)
    for _ in range(lesson.steps):
        if len(left) < min(lesson.batch_size, count):
            left = torch.randperm(count, generator=generator).to(device)
        yield left[: lesson.batch_size]
        left = left[lesson.batch_size :]


def _anchor(head: Taught, clean: Reading, shifted: Reading, lesson: Lesson) -> None:
    """Standardises v on the clean images, then fits the five numbers by NLL, in float64.

    Clean images alone give the lowest NLL there; every weight on shifted ones costs some of it. The shifted images get the
    largest weight, up to half, that keeps that cost within `lesson.tolerance`.
    """
    seen = head.read(clean.features.float())[:, 0].double()
    middle, spread = seen.mean(), seen.std(correction=0)
    spread = torch.where(spread > 0, spread, torch.ones_like(spread))
    head.fc2.bias[0] = (head.fc2.bias[0].double() - middle) / spread
    head.fc2.weight[0] = head.fc2.weight[0].double() / spread
    fit = _AnchorFit(head, clean, shifted)
    best = fit(0.0)
    limit = fit.clean_nll(best) + max(lesson.tolerance * fit.clean_nll(best), _NOTHING)
    low, high = 0.0, 0.5
    numbers = fit(high)
    if fit.clean_nll(numbers) > limit:
        numbers = best
        for _ in range(_HALVINGS):
            share = (low + high) / 2
            tried = fit(share)
            if fit.clean_nll(tried) > limit:
                high = share
            else:
                low, numbers = share, tried
    head.anchor.copy_(_positive(numbers))


class _AnchorFit:
    """`fit(share)` gives the numbers that suit a mixture with that share of shifted images; it starts from the last ones.

    Where that ends no better than one temperature without class terms, whose value is always finite, it starts again from there.
    """

    def __init__(self, head: Taught, clean: Reading, shifted: Reading) -> None:
        self.kind = head.kind
        self.count = len(clean)
        self.parts = [
            (head.read(each.features.float()).double(), each.logits.double(), each.targets) for each in (clean, shifted)
        ]
        self.prior = torch.tensor(_PRIOR, dtype=torch.float64, device=clean.logits.device)
        self.last = self.prior.clone()
        self.plain = np.array([_best_log_temperature(clean), *_PRIOR[1:3], 0.0, 0.0])

    def __call__(self, share: float) -> Float[Tensor, " 5"]:
        def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
            """A sum over the clean images, in nats, and its gradient; where an exponential overflows, high and flat."""
            numbers = torch.tensor(values, device=self.prior.device, requires_grad=True)
            loss = 0.5 * (numbers - self.prior).square().sum()
            for weight, part in zip((1 - share, share), self.parts, strict=True):
                if weight > 0:
                    loss = loss + weight * self.count * self._nll(numbers, *part)
            (slope,) = torch.autograd.grad(loss, numbers)
            if not bool(torch.isfinite(loss) & torch.isfinite(slope).all()):
                return 1e12, np.zeros_like(values)
            return float(loss.detach()), slope.cpu().numpy()

        def minimum(start: np.ndarray) -> scipy.optimize.OptimizeResult:
            return scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", bounds=_BOUNDS)

        found = minimum(self.last.cpu().numpy())
        if found.fun > objective(self.plain)[0]:
            found = minimum(self.plain)
        self.last = torch.from_numpy(found.x).to(self.prior.device)
        return self.last

    @torch.no_grad()
    def clean_nll(self, numbers: Float[Tensor, " 5"]) -> float:
        return float(self._nll(numbers, *self.parts[0]))

    def _nll(self, numbers: Tensor, read: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        return _mean_nll(logits, anchored(read, logits, _positive(numbers), self.kind), targets)


def _positive(numbers: Float[Tensor, " 5"]) -> Float[Tensor, " 5"]:
    """`low` and `high` are fitted as logarithms."""
    return torch.cat([numbers[:1], numbers[1:3].exp(), numbers[3:]])


def _mean_nll(logits: Tensor, judged: tuple[Tensor, Tensor | None], targets: Tensor) -> Tensor:
    """Of scale and offset, against classes or soft labels."""
    scale, offset = judged
    out = ModelOutput(logits, scale, logits, offset).calibrated_logits
    return functional.cross_entropy(out, _as_targets(targets, out))


def _as_targets(targets: Tensor, logits: Tensor) -> Tensor:
    return targets.to(logits.dtype) if targets.is_floating_point() else targets


def _best_log_temperature(reading: Reading) -> float:
    """Of a grid, on the first rows: where learning begins."""
    logits, targets = reading.logits[:_ROWS_FOR_START].double(), reading.targets[:_ROWS_FOR_START]
    grid = [step / 10 for step in range(-20, 31)]
    return min(
        grid, key=lambda log_t: float(functional.cross_entropy(logits / math.exp(log_t), _as_targets(targets, logits)))
    )
