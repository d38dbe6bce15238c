"""What every loss shares: how arguments are treated, and its form as a module; and the watch over a loss of your own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from calattn import checks
from calattn.errors import InputError

Logits = Float[Tensor, "n c"]
Labels = Int[Tensor, " n"] | Float[Tensor, "n c"]
Losses = Float[Tensor, ""] | Float[Tensor, " n"]
Reduction = Literal["mean", "sum", "none"]


def prepare(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits in float32 (float64 stays), labels as int64 [n] or as targets [n, c] of the logits' precision.

    Shapes, dtypes and devices are always checked. Label values are checked on the CPU only: on an accelerator
    the check would stop the host until the device has caught up, once a step; `check_labels` does it there on
    request. It is skipped under `torch.compile`, which cannot trace it. Non-finite logits pass: they show up
    in the loss.
    """
    _check_shapes(logits, labels)
    if labels.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_values(labels, num_classes=logits.shape[1])
    # Half precision cannot hold the loss: bf16 has 8 bits, and 1 − p is 0 from p = 0.998 on. No loss uses a
    # matrix product, so nothing below is cast down again by autocast.
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits, labels.to(logits.dtype if labels.is_floating_point() else torch.int64)


def check_labels(logits: Tensor, labels: Tensor) -> None:
    """Raise `ValueError` if labels do not fit the logits, naming the first bad row; waits for the device.

    >>> check_labels(torch.zeros(2, 3), torch.tensor([0, 3]))
    Traceback (most recent call last):
    ...
    ValueError: labels[1] is 3, outside [0, 2]
    """
    _check_shapes(logits, labels)
    _check_values(labels, num_classes=logits.shape[1])


def over_labels(term: Callable[[Tensor], Tensor], log_probs: Tensor, labels: Tensor) -> Tensor:
    """Per sample, term(log p_y) for class indices, or Σ_k q_k term(log p_k) for soft labels q."""
    if labels.ndim == 1:
        return term(log_probs.gather(1, labels.unsqueeze(1)).squeeze(1))
    # A class without label mass must not count, even at log p = −inf, where 0 · ∞ would be NaN.
    return (labels * term(log_probs.masked_fill(labels == 0, 0.0))).sum(dim=1)


def dense(labels: Tensor, like: Tensor) -> Tensor:
    """Labels as distributions over classes: one-hot rows for class indices, soft labels as they are."""
    if labels.ndim == 2:
        return labels
    return torch.zeros_like(like).scatter(1, labels.unsqueeze(1), 1.0)


def non_negative(value: float, name: str) -> float:
    return _in_range(value, f"{name} must be finite and at least 0", lambda number: number >= 0)


def positive(value: float, name: str) -> float:
    return _in_range(value, f"{name} must be positive and finite", lambda number: number > 0)


def _in_range(value: float, rule: str, holds: Callable[[float], bool]) -> float:
    if torch.compiler.is_compiling():  # a number that changes between graphs is a symbol there, without a value
        return value
    if isinstance(value, bool) or not isinstance(value, float | int) or not math.isfinite(value) or not holds(value):
        raise ValueError(f"{rule}, got {value!r}")
    return float(value)


def reduce(values: Tensor, reduction: Reduction) -> Tensor:
    """The mean or sum over samples, or the per-sample values themselves."""
    if reduction == "mean":
        return values.mean()
    if reduction == "sum":
        return values.sum()
    if reduction == "none":
        return values
    raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def _check_shapes(logits: Tensor, labels: Tensor) -> None:
    if not isinstance(logits, Tensor):
        hint = "; pass its calibrated_logits" if hasattr(logits, "calibrated_logits") else ""
        raise ValueError(f"logits must be a tensor, got {type(logits).__name__}{hint}")
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ValueError(f"logits must be floating point [n, c], got {logits.dtype} {list(logits.shape)}")
    n, num_classes = logits.shape
    if n == 0 or num_classes < 2:
        raise ValueError(f"logits must have a row and two classes at least, got shape {[n, num_classes]}")
    if not isinstance(labels, Tensor):
        raise ValueError(f"labels must be a tensor, got {type(labels).__name__}")
    wanted = [n, num_classes] if labels.is_floating_point() else [n]
    if list(labels.shape) != wanted or labels.dtype == torch.bool or labels.is_complex():
        got = f"{labels.dtype} {list(labels.shape)}"
        raise ValueError(f"labels must be class indices [{n}] or soft labels [{n}, {num_classes}], got {got}")
    if labels.device != logits.device:
        raise ValueError(f"labels are on {labels.device}, logits on {logits.device}; move the labels")


def _check_values(labels: Tensor, *, num_classes: int) -> None:
    if not labels.is_floating_point():
        bad = (labels < 0) | (labels >= num_classes)
        if bad.any():
            row = checks.first(bad)
            raise ValueError(f"labels[{row}] is {int(labels[row])}, outside [0, {num_classes - 1}]")
        return
    total = labels.sum(dim=1, dtype=torch.float64)
    # Written with ~(…) so that NaN is caught too.
    bad = ~((labels.amin(dim=1) >= 0) & ((total - 1).abs() <= checks.sum_tolerance(labels.dtype)))
    if bad.any():
        row = checks.first(bad)
        if not labels[row].min() >= 0:
            raise ValueError(f"labels[{row}] has a negative or NaN entry")
        raise ValueError(f"labels[{row}] sums to {float(total[row]):.6g}, not 1")


class Loss(nn.Module):
    """A loss function with its options checked once and then fixed; it has no parameters and no state.

    >>> from calattn.losses import mbls
    >>> Loss(mbls, margin=6)
    Loss(mbls, margin=6.0, weight=0.1, reduction='mean')
    >>> Loss(mbls, margins=6)
    Traceback (most recent call last):
    ...
    ValueError: mbls has no option 'margins'; it takes margin, weight, reduction
    """

    def __init__(self, function: Callable[..., Tensor], /, **options: object) -> None:
        super().__init__()
        parameters = inspect.signature(function).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        for name in options:
            if name not in defaults:
                known = ", ".join(defaults) or "none"
                raise ValueError(f"{function.__name__} has no option {name!r}; it takes {known}")
        # YAML and people write 6 for 6.0: the same run must not get two spellings in its record.
        given = {name: float(v) if type(v) is int else v for name, v in options.items()}
        self._function = function
        self._options = {**defaults, **given}
        # The function is the one place that knows its ranges, so a first call on two samples checks them.
        example = torch.zeros(2, 2, device="cpu"), torch.zeros(2, dtype=torch.int64, device="cpu")
        function(*example, **self._options)

    @property
    def name(self) -> str:
        return self._function.__name__

    @property
    def options(self) -> dict[str, object]:
        """Every option with its value, defaults included: what a run's record needs."""
        return dict(self._options)

    def forward(self, logits: Logits, labels: Labels) -> Losses:
        return self._function(logits, labels, **self._options)

    def extra_repr(self) -> str:
        return ", ".join([self.name, *(f"{name}={value!r}" for name, value in self._options.items())])


class LossError(InputError):
    """A loss that fails, or gives something else than one number with a gradient; the message names it."""


class OwnLoss(nn.Module):
    """Calls the loss and looks at the shape of what it gives, which costs no wait for the device.

    >>> OwnLoss("mine", lambda logits, labels: logits.sum(dim=1))(torch.zeros(2, 3), torch.tensor([0, 1]))
    Traceback (most recent call last):
    ...
    calattn.losses.loss.LossError: the loss 'mine' gave a tensor of shape [2]; it must give one number: end it with .mean()
    """

    def __init__(self, name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.name, self.function = name, function

    def forward(self, logits: Logits, labels: Labels) -> Float[Tensor, ""]:
        if torch.compiler.is_compiling():  # a `try` would end the graph here
            return self.function(logits, labels)
        try:
            value = self.function(logits, labels)
        except Exception as error:  # somebody else's code: whatever it raises is about the loss
            if _out_of_memory(error):
                raise
            text = " ".join(str(error).split())
            raise LossError(f"the loss {self.name!r} fails with {type(error).__name__}: {text}") from error
        _check_kind(value, self.name)
        return value


def check_loss(loss: Callable[[Tensor, Tensor], Tensor], name: str, labels: Tensor, *, num_classes: int) -> None:
    """One call on random logits of so many rows as there are labels: a finite number that leads back to the logits."""
    drawn = torch.randn(len(labels), num_classes, generator=torch.Generator().manual_seed(0), device="cpu")
    logits = drawn.requires_grad_()
    with torch.random.fork_rng(devices=[]):  # a loss may draw numbers: those of the caller stay as they are
        value = loss(logits, labels)
    _check_kind(value, name)
    if not value.requires_grad:
        raise LossError(
            f"the loss {name!r} gave a number without a gradient; compute it from the logits with torch alone, without "
            ".detach(), .item(), argmax or no_grad"
        )
    if not torch.isfinite(value):
        raise LossError(
            f"the loss {name!r} is {value.item()} on random logits of {len(labels)} samples; look for the logarithm or root "
            "of 0, and for means over nothing"
        )


def _check_kind(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        gave = f"{type(value).__name__}; it must give a tensor of one number"
        remedy = "return it" if value is None else "compute it with torch, so that it has a gradient"
    elif value.ndim != 0:
        gave = f"a tensor of shape {list(value.shape)}; it must give one number"
        remedy = "end it with .mean()" if value.numel() != 1 else "end it with .squeeze()"
    elif not value.is_floating_point():
        gave, remedy = f"{value.dtype}; it must give a floating-point number", "compute it in float32"
    else:
        return
    raise LossError(f"the loss {name!r} gave {gave}: {remedy}")


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
