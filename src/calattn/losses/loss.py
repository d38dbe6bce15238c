"""A loss as a module: ours with its options fixed, and somebody else's, watched."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from calattn.errors import InputError
from calattn.losses._arguments import Labels, Logits, Losses


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
        remedy = "return it" if value is None else "compute it with torch, so that it has a gradient"
        raise LossError(f"the loss {name!r} gave {type(value).__name__}; it must give a tensor of one number: {remedy}")
    if value.ndim != 0:
        remedy = "end it with .mean()" if value.numel() != 1 else "end it with .squeeze()"
        raise LossError(
            f"the loss {name!r} gave a tensor of shape {list(value.shape)}; it must give one number: {remedy}"
        )
    if not value.is_floating_point():
        raise LossError(f"the loss {name!r} gave {value.dtype}; it must give a floating-point number")


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
