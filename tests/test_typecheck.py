"""The shape checks of the tests are on: a module that was imported before them would go unchecked, and nobody would notice."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float
from torch import Tensor

from tests.typecheck import PARTS, checked, light


def test_every_module_that_handles_tensors_is_checked():
    names = [f"calattn.{part}" for part in PARTS]
    for name in tuple(names):
        path = getattr(importlib.import_module(name), "__path__", None)
        names += [] if path is None else [each.name for each in pkgutil.walk_packages(path, f"{name}.")]
    for name in names:
        importlib.import_module(name)
    unchecked = [name for name in names if "jaxtyping" not in type(sys.modules[name].__loader__).__module__]
    assert len(names) > 60
    assert not unchecked


@light(typechecker=checked)
def mirrored(x: Float[Tensor, "n c"], out: Tomorrow = None) -> Float[Tensor, "c n"]:  # noqa: F821
    return x.T if out is None else out


@light(typechecker=checked)
def totals(x: Float[Tensor, "n c"], weights: Float[Tensor, " n"]) -> Float[Tensor, " c"]:
    turned = mirrored(x)  # the n of that call is not ours
    return turned.sum(dim=1) if weights.sum() > 0 else weights


def test_sizes_agree_between_the_arguments_of_a_call_and_its_result(request):
    x = torch.ones(3, 2)
    assert torch.equal(totals(x, torch.ones(3)), torch.full((2,), 3.0))
    wrong_arguments = [(totals, x, torch.ones(2)), (totals, x[0], torch.ones(3)), (totals, x.long(), torch.ones(3))]
    wrong_results = [(totals, x, torch.zeros(3)), (mirrored, x, x)]
    for function, *arguments in wrong_arguments + wrong_results:
        with pytest.raises(BeartypeCallHintViolation):
            function(*arguments)
    assert mirrored(x, x.T) is not None, "a hint that names what is not there yet goes unchecked"
    request.getfixturevalue("untyped")
    assert torch.equal(totals(x, torch.zeros(3)), torch.zeros(3))
