"""The contract: what a calibrator's own `_fit` and `_apply` must give, checked in one place for everybody's calibrators."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calattn import checks
from calattn.errors import BadRowError, InputError
from calattn.types import Predictions

if TYPE_CHECKING:
    from calattn.posthoc.base import Fitted

_BY_FIT = ("num_classes_", "fitted_on_", "num_samples_")  # which `fit` itself adds
_RETURN = "return predictions.replace(logits=…, scale=None)"


def check_learned(kind: type[Fitted], learned: object) -> None:
    """`_fit` gave each value that the class declares, and no other, and a file can hold them."""
    who, declared = kind.__name__, [name for name in kind.learned_names() if name not in _BY_FIT]
    if not isinstance(learned, dict):
        raise ValueError(
            f"{who}._fit returned {_article(learned)}; return a dict of what it declares: {_names(declared)}"
        )
    if set(learned) - set(_BY_FIT) != set(declared):
        raise ValueError(
            f"{who}._fit returned {_names(learned)}, but {who} declares {_names(declared)}: {_remedy(kind, learned, declared)}"
        )
    for name, value in learned.items():
        fits = all(isinstance(it, Tensor) for it in value.values()) if isinstance(value, dict) else _plain(value)
        if not fits:
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


def _plain(value: object) -> bool:
    return isinstance(value, Tensor | float | int | str)


def _remedy(kind: type[Fitted], learned: dict[str, object], declared: list[str]) -> str:
    """What is to be done about names that differ."""
    decorated = "__dataclass_fields__" in vars(kind)
    decorate = f"decorate {kind.__name__} with @dataclasses.dataclass(kw_only=True, eq=False, repr=False)"
    undeclared = next((name for name in learned if name not in (*declared, *_BY_FIT)), None)
    if undeclared is None:
        missing = ", ".join(name for name in declared if name not in learned)
        return f"return {missing} too; what is an option and not learned has no init=False"
    if not decorated and undeclared in inspect.get_annotations(kind):
        return decorate
    kept = type(learned[undeclared]).__name__
    declare = f"write {undeclared}: {kept} = dataclasses.field(init=False, repr=False) in the class"
    return declare if decorated else f"{declare}, and {decorate}"


@contextlib.contextmanager
def blaming(who: str) -> Iterator[None]:
    """Values that `Predictions` refuses are `_apply`'s own: what it was given was checked when it was made."""
    try:
        yield
    except BadRowError as error:
        problem = f"{error.problem} in what {who}._apply made of sound predictions"
        raise InputError.of(error, problem=problem, remedy=f"fix {who}, or leave it out") from error


def check_applied(who: str, found: object, given: Predictions) -> None:
    """`_apply` gave the samples that it was given, with as many classes, and numbers."""
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
