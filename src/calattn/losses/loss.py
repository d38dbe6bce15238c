"""A loss with its options fixed, as a module: what the registry makes and a training loop calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


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

    def forward(
        self, logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"] | Float[Tensor, "n c"]
    ) -> Float[Tensor, ""] | Float[Tensor, " n"]:
        return self._function(logits, labels, **self._options)

    def extra_repr(self) -> str:
        return ", ".join([self.name, *(f"{name}={value!r}" for name, value in self._options.items())])
