"""Checks of what callers hand over. Each raises `ValueError` naming the argument and the first offending index."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from calattn import remedies

ArrayLike = Tensor | np.ndarray

# How far a row of probabilities may sum from one: rounding of C terms in the input's own precision, with room. float64 gets
# float32's: much of it was float32 until a moment ago.
_SUM_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


def as_tensor(values: ArrayLike, name: str) -> Tensor:
    """A tensor over the same memory; numpy arrays, lists and tensors are welcome, objects and strings are not."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
        if not array.flags.writeable:
            array = array.copy()  # torch warns about read-only memory (memory maps, broadcast views)
        return torch.from_numpy(np.ascontiguousarray(array) if any(s < 0 for s in array.strides) else array)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a tensor or a numeric array, got {type(values).__name__}: {error}") from None


def matrix(values: ArrayLike, name: str, *, labels: object = None) -> Tensor:
    """A floating [n, c] tensor with n ≥ 1 and c ≥ 2. The shape of the `labels` helps to say what is wrong."""
    tensor = as_tensor(values, name)
    if tensor.ndim != 2:
        hint = "; for a binary P(y=1) vector p, pass stack([1 - p, p], 1)" if tensor.ndim == 1 else ""
        move = "torch.movedim" if isinstance(values, Tensor) else "np.moveaxis"
        code = remedies.flattening(tensor.shape, getattr(labels, "shape", None), values=name, move=move)
        hint += f"; one row a label: {code}" if code else ""
        raise ValueError(f"{name} must have shape [n, c], got {list(tensor.shape)}{hint}")
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {tensor.dtype}")
    if tensor.shape[0] == 0:
        raise ValueError(f"{name} is empty: there is nothing to measure")
    if tensor.shape[1] < 2:
        raise ValueError(f"{name} must have at least 2 classes, got {tensor.shape[1]}")
    if tensor.dtype not in _SUM_TOLERANCE:
        raise ValueError(f"{name} must be float16, bfloat16, float32 or float64, got {tensor.dtype}")
    return tensor


def widened(tensor: Tensor) -> Tensor:
    """Half precision as float32, the rest as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def labels_for(labels: ArrayLike, name: str, shape: torch.Size, device: torch.device) -> Tensor:
    """Labels as int64 [n] in [0, c), for predictions of shape [n, c]."""
    n, num_classes = shape
    tensor = as_tensor(labels, name)
    if tensor.ndim != 1:
        remedy = _one_label_a_row(tensor, name, shape)
        raise ValueError(f"{name} must have shape [n], got {list(tensor.shape)}; {remedy}")
    if tensor.shape[0] != n:
        raise ValueError(f"{name} has {tensor.shape[0]} entries but the predictions have {n} rows")
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise ValueError(f"{name} must be integers, got {tensor.dtype}; convert with .long() if they are class indices")
    tensor = tensor.to(device=device, dtype=torch.int64)
    bad = (tensor < 0) | (tensor >= num_classes)
    if bad.any():
        index = first(bad)
        one_based = int(tensor.min()) == 1 and int(tensor.max()) == num_classes
        hint = "; they look 1-based: subtract 1" if one_based else ""
        raise ValueError(f"{name}[{index}] is {int(tensor[index])}, outside [0, {num_classes - 1}]{hint}")
    return tensor


def _one_label_a_row(labels: Tensor, name: str, shape: torch.Size) -> str:
    if labels.numel() == shape[0]:
        return f"pass {name}.reshape(-1)"
    if labels.shape != shape:
        return "pass the class of each row"
    one_hot = ((labels == 0) | (labels == 1)).all() and bool((labels.sum(dim=1) == 1).all())
    return f"these are one-hot: pass {name}.argmax(1)" if one_hot else remedies.ONE_TRUE_CLASS


def first(mask: Tensor) -> int:
    """The first true index of a 1-D mask that has one."""
    return int(mask.nonzero()[0, 0])


def finite_rows(row_max: Tensor, name: str, values: Tensor, offset: int = 0) -> None:
    """Every row maximum must be finite: NaN and +inf reach the maximum, and a row of −inf has no distribution."""
    bad = ~torch.isfinite(row_max)
    if bad.any():
        row = first(bad)
        culprit = ~torch.isfinite(values[row]) & (values[row] != -torch.inf)
        if culprit.any():
            column = first(culprit)
            raise ValueError(f"{name}[{row + offset}, {column}] is {float(values[row, column])}")
        raise ValueError(f"{name}[{row + offset}] is -inf for every class")


def sum_tolerance(dtype: torch.dtype) -> float:
    return _SUM_TOLERANCE[dtype]


def positive_int(value: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return int(value)


def generator(value: object) -> torch.Generator:
    if not isinstance(value, torch.Generator):
        raise ValueError(f"generator must be a torch.Generator, say torch.Generator().manual_seed(0), got {value!r}")
    return value


def in_unit_interval(value: float, name: str) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")
    return float(value)


def positive(value: float, name: str) -> float:
    if not (value > 0 and np.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return float(value)
