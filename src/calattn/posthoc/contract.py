"""The contract: what a calibrator's own `_fit` and `_apply` must give, checked in one place for everybody's calibrators."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calattn import checks
from calattn.errors import BadRowError, InputError
from calattn.types import Predictions

if TYPE_CHECKING:
    from calattn.posthoc.base import Calibrator, Fitted

_BY_FIT = ("num_classes_", "fitted_on_", "num_samples_")  # which `fit` itself adds
_DECORATE = "decorate it with @dataclasses.dataclass(kw_only=True, eq=False, repr=False)"
_RETURN = "return predictions.replace(logits=…, scale=None)"


def check_learned(kind: type[Fitted], learned: object) -> None:
    """`_fit` gave each value that the class declares, and no other, and a file can hold them."""
    who, declared = kind.__name__, [name for name in kind.learned_names() if name not in _BY_FIT]
    if not isinstance(learned, dict) or set(learned) - set(_BY_FIT) != set(declared):
        found = _names(learned) if isinstance(learned, dict) else _article(learned)
        raise ValueError(
            f"{who}._fit returned {found}, but {who} declares {_names(declared)}: return a dict of what is declared; to declare "
            f"one, write NAME_: float = dataclasses.field(init=False, repr=False) in the class, and {_DECORATE}"
        )
    for name, value in learned.items():
        parts, kinds = (value.values(), Tensor) if isinstance(value, dict) else ([value], Tensor | float | int | str)
        if not all(isinstance(part, kinds) for part in parts):
            raise ValueError(
                f"{who}._fit returned {_article(value)} as {name}; a calibrator's file holds tensors, dicts of tensors, "
                "numbers and text: give torch.as_tensor(…), or float(…)"
            )


def check_restored(kind: type[Fitted], learned: dict[str, object]) -> None:
    """A file holds what the class declares, of the types it declares, and no NaN."""
    if set(learned) != set(kind.learned_names()):
        raise ValueError(f"it lacks or adds {_names(set(learned) ^ set(kind.learned_names()))}")
    hints = typing.get_type_hints(kind)
    for name, value in learned.items():
        wanted = {float: float | int, dict[str, Tensor]: dict}.get(hints[name], hints[name])
        parts = value.values() if isinstance(value, dict) else [value]
        nan = any(bool(torch.as_tensor(it).isnan().any()) for it in parts if isinstance(it, Tensor | float))
        if nan or not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool):
            raise ValueError(f"{name} is {'NaN' if nan else _article(value)}")


def applied(calibrator: Calibrator, given: Predictions) -> Predictions:
    """What `_apply` gives: the samples that it was given, with as many classes, and numbers.

    Values that `Predictions` refuses are `_apply`'s own: what it was given was checked when it was made.
    """
    who = type(calibrator).__name__
    try:
        found = calibrator._apply(given)
        _check_applied(who, found, given)
    except BadRowError as error:
        problem = f"{error.problem} in what {who}._apply made of sound predictions"
        raise InputError.of(error, problem=problem, remedy=f"fix {who}, or leave it out") from error
    return found


def _check_applied(who: str, found: object, given: Predictions) -> None:
    if not isinstance(found, Predictions):
        raise ValueError(f"{who}._apply returned {_article(found)}, not Predictions; {_RETURN}")
    if found.logits.shape != given.logits.shape:
        raise ValueError(
            f"{who}._apply returned {len(found)} samples of {found.num_classes} classes, and was given {len(given)} of "
            f"{given.num_classes}; return every row, with all of its classes"
        )
    if not torch.equal(found.labels, given.labels.to(found.labels.device)):
        raise ValueError(
            f"{who}._apply returned other labels than it was given, or the samples in another order; {_RETURN}"
        )
    if found.stated_probs is not None:  # which `Predictions` takes on trust
        checks.finite_rows(found.stated_probs.amax(dim=1), "probs", found.stated_probs)


def _names(names: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, names))) or "nothing"


def _article(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
