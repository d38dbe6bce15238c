"""Evaluation of logits on a device: the same values in few large operations, without a copy of the logits back.

The device is a stand-in: its tensors are held by the CPU and refuse to be mixed with the CPU's own, as those of a GPU do.
"""

from __future__ import annotations

import collections

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from calattn import Predictions, evaluate

FAR = torch.device("meta")  # no such tensor is ever without its values here
WAITS = {
    "_local_scalar_dense",
    "nonzero",
    "unique_consecutive",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
}


class Far(torch.Tensor):
    near: torch.Tensor

    @staticmethod
    def __new__(cls, near: torch.Tensor):
        kind = {"dtype": near.dtype, "device": FAR, "storage_offset": near.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(cls, near.shape, strides=near.stride(), **kind)
        made.near = near
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} outside of the device's mode")


class Device(TorchDispatchMode):
    """Counts operations, those that wait for the device, and the bytes that are copied from it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: collections.Counter[str] = collections.Counter()
        self.waits = self.bytes_back = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        flat = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        far = any(isinstance(each, Far) for each in flat)
        name = func.overloadpacket.__name__
        to = kwargs.get("device")
        here = far if to is None else torch.device(to) == FAR
        if not far and not here:
            return func(*args, **kwargs)
        moved = name in ("_to_copy", "copy_")
        mixed = [each for each in flat if not isinstance(each, Far) and each.ndim > 0]
        assert moved or not mixed, (
            f"{name} mixes tensors of the device with tensors {[each.shape for each in mixed]} of the CPU"
        )
        self.calls[name] += 1
        masks = name.startswith("index") and any(
            isinstance(each, Far) and each.dtype == torch.bool for each in flat[1:2]
        )
        self.waits += name in WAITS or masks
        if far and (not here or (name == "copy_" and not isinstance(args[0], Far))):
            self.waits += 1
            self.bytes_back += sum(each.near.nbytes for each in flat if isinstance(each, Far))
        if to is not None:
            kwargs["device"] = torch.device("cpu")
        same = {id(each.near): each for each in flat if isinstance(each, Far)}
        near_args, near_kwargs = tree_map(lambda x: x.near if isinstance(x, Far) else x, (args, kwargs))
        found = func(*near_args, **near_kwargs)
        if here is False or (name == "copy_" and not isinstance(args[0], Far)):
            return args[0] if name == "copy_" else found.clone()
        return tree_map(
            lambda x: x if not isinstance(x, torch.Tensor) else same[id(x)] if id(x) in same else Far(x), found
        )


def predictions(n: int = 6000, c: int = 30) -> Predictions:
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(n, c, generator=g), torch.randint(c, (n,), generator=g)
    logits[torch.arange(n), labels] += 8 * torch.rand(n, generator=g)
    return Predictions(logits=logits, labels=labels)


@pytest.mark.parametrize(("resamples", "operations"), [(0, 700), (100, 1150)])
def test_evaluation_stays_on_the_device(resamples, operations):
    """An operation takes about 5 microseconds of a GPU's host and a wait 20: the rest is up to the memory's speed."""
    near = predictions()
    expected = evaluate(near, num_bootstrap=resamples)
    with Device() as device:
        far = Predictions(logits=near.logits.to(FAR), labels=near.labels.to(FAR))
        device.calls.clear()
        device.waits = device.bytes_back = 0
        found = evaluate(far, num_bootstrap=resamples)
    assert device.calls.total() < operations
    assert device.waits < 45
    assert device.bytes_back < 2000 + 8 * len(expected) * resamples  # sums and replicates; the logits are 720,000
    for name, row in expected.as_dict().items():
        assert found.as_dict()[name] == pytest.approx(row, abs=1e-6), name
