"""Checks of what callers pass. Each raises a `ValueError` with the argument and the first offending index."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from calattn.errors import BadRowError, InputError, Words

ArrayLike = Tensor | np.ndarray

ONE_TRUE_CLASS = "every metric here is of one true class per row; take each class as a binary problem of its own"

# How far a row of probabilities may sum from one: rounding of C terms in the input's own precision, with room. float64 gets
# float32's: much of it was float32 until a moment ago.
_SUM_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Switches autocast and TF32 off: sums stay float32 and float64 whatever a forward pass runs in. Decorates functions too."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def as_tensor(values: ArrayLike, name: str) -> Tensor:
    """A tensor over the same memory; from numpy arrays, lists and tensors, not from objects and strings."""
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
    """A floating [n, c] tensor with n ≥ 1 and c ≥ 2. The shape of the `labels` helps to explain what is wrong."""
    tensor = as_tensor(values, name)
    if tensor.ndim != 2:
        hint = "; for a binary P(y=1) vector p, pass stack([1 - p, p], 1)" if tensor.ndim == 1 else ""
        move = "torch.movedim" if isinstance(values, Tensor) else "np.moveaxis"
        code = flattening(tensor.shape, getattr(labels, "shape", None), values=name, move=move)
        hint += f"; one row per label: {code}" if code else ""
        raise ValueError(f"{name} must have shape [n, c], got {list(tensor.shape)}{hint}")
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {tensor.dtype}")
    if tensor.shape[0] == 0:
        raise ValueError(f"{name} is empty: there is nothing to measure")
    if tensor.shape[1] < 2:
        problem = f"must have at least 2 classes, got {tensor.shape[1]}"
        raise InputError(problem, argument=name, remedy="give one column per class")
    if tensor.dtype not in _SUM_TOLERANCE:
        raise ValueError(f"{name} must be float16, bfloat16, float32 or float64, got {tensor.dtype}")
    return tensor


def flattening(
    shape: Sequence[int],
    labels_shape: Sequence[int] | None,
    *,
    values: str = "logits",
    labels: str = "labels",
    move: str = "np.moveaxis",
) -> str:
    """Code that makes rows of pixels or tokens, where the labels (or, without any, four axes) show that they are classified.

    >>> flattening((2, 4, 8, 8), (2, 8, 8))
    'logits = np.moveaxis(logits, 1, -1).reshape(-1, 4); labels = labels.reshape(-1)'
    >>> flattening((2, 8, 8, 4), (2, 8, 8))
    'logits = logits.reshape(-1, 4); labels = labels.reshape(-1)'
    """
    shape = tuple(shape)
    inner = tuple(labels_shape[1:]) if labels_shape is not None else shape[2:] if len(shape) == 4 else ()
    if not inner or inner not in (shape[2:], shape[1:-1]):
        return ""
    first = inner == shape[2:]  # [n, c, h, w]; else [n, h, w, c]
    moved = f"{move}({values}, 1, -1)" if first else values
    width = shape[1] if first else shape[-1]
    return f"{values} = {moved}.reshape(-1, {width}); {labels} = {labels}.reshape(-1)"


def widened(tensor: Tensor) -> Tensor:
    """Half precision as float32, the rest as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def labels_for(labels: ArrayLike, name: str, shape: torch.Size, device: torch.device) -> Tensor:
    """Labels as int64 [n] in [0, c), for predictions of shape [n, c]."""
    n, num_classes = shape
    tensor = as_tensor(labels, name)
    if tensor.ndim != 1:
        remedy = _one_label_per_row(tensor, name, shape)
        raise ValueError(f"{name} must have shape [n], got {list(tensor.shape)}; {remedy}")
    if tensor.shape[0] != n:
        raise ValueError(f"{name} has {tensor.shape[0]} entries but the predictions have {n} rows")
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise ValueError(f"{name} must be integers, got {tensor.dtype}; convert with .long() if they are class indices")
    tensor = tensor.to(device=device, dtype=torch.int64)
    # On the CPU by numpy: the threads that torch starts here would keep a core busy while the caller's own threads run.
    plain = tensor.numpy() if tensor.device.type == "cpu" else tensor
    bad = (plain < 0) | (plain >= num_classes)
    if bad.any():
        index = first(torch.as_tensor(bad))
        one_based = int(tensor.min()) == 1 and int(tensor.max()) == num_classes
        remedy = "they look 1-based: subtract 1" if one_based else "class indices count from 0"
        problem = f"is {int(tensor[index])}, outside [0, {num_classes - 1}]"
        raise InputError(problem, argument=name, row=index, remedy=remedy)
    return tensor


def _one_label_per_row(labels: Tensor, name: str, shape: torch.Size) -> str:
    if labels.numel() == shape[0]:
        return f"pass {name}.reshape(-1)"
    if labels.shape != shape:
        return "pass the class of each row"
    one_hot = ((labels == 0) | (labels == 1)).all() and bool((labels.sum(dim=1) == 1).all())
    return f"these are one-hot: pass {name}.argmax(1)" if one_hot else ONE_TRUE_CLASS


def first(mask: Tensor) -> int:
    """The first true index of a 1-D mask that has one."""
    return int(mask.nonzero()[0, 0])


def finite_rows(row_max: Tensor, name: str, values: Tensor, offset: int = 0) -> None:
    """Every row maximum must be finite: NaN and +inf reach the maximum, and a row of −inf has no distribution."""
    bad = ~torch.isfinite(row_max)
    if bad.any():
        row = first(bad)
        culprit = ~torch.isfinite(values[row]) & (values[row] != -torch.inf)
        column = first(culprit) if culprit.any() else None
        problem = "is -inf for every class" if column is None else f"is {float(values[row, column])}"
        remedy = "remove such rows, or fix the model that made them"
        raise BadRowError(problem, argument=name, row=row + offset, column=column, remedy=remedy)


def probabilities(
    probs: Tensor, tolerance: float, *, negative: Words, otherwise: Words, name: str = "probs", offset: int = 0
) -> tuple[Tensor, Tensor]:
    """The largest entry and the sum of each row; rows must be finite, not negative (else the remedy `negative`) and sum to 1.

    `otherwise` is the remedy where they do not, and are not per cent. `offset` is the number of the first row.
    """
    largest, low, sums = probs.amax(dim=1), probs.amin(dim=1), probs.sum(dim=1)
    off = (sums - 1).abs() > tolerance
    if bool((torch.isfinite(largest) & (low >= 0) & ~off).all()):
        return largest, sums
    finite_rows(largest, name, probs, offset)
    if (below := low < 0).any():
        row = first(below)
        problem = f"is {float(low[row]):.6g}, negative"
        raise BadRowError(problem, argument=name, row=row + offset, column=int(probs[row].argmin()), remedy=negative)
    row = first(off)
    total = float(probs[row].double().sum())
    # Per cent are rounded to a digit or two more often than fractions are.
    percent = abs(total - 100) <= 100 * max(tolerance, 0.01)
    remedy = "these look like per cent: divide by 100" if percent else otherwise
    raise BadRowError(f"sums to {total:.6g}, not 1", argument=name, row=row + offset, remedy=remedy)


def sum_tolerance(dtype: torch.dtype) -> float:
    return _SUM_TOLERANCE[dtype]


def positive_int(value: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"must be a positive integer, got {value!r}", argument=name)
    return int(value)


def generator(value: object) -> torch.Generator:
    if not isinstance(value, torch.Generator):
        raise ValueError(f"generator must be a torch.Generator, say torch.Generator().manual_seed(0), got {value!r}")
    return value


def in_unit_interval(value: float, name: str) -> float:
    if not 0.0 <= value <= 1.0:
        raise InputError(f"must be in [0, 1], got {value!r}", argument=name)
    return float(value)


def positive(value: float, name: str) -> float:
    if not (value > 0 and np.isfinite(value)):
        raise InputError(f"must be positive and finite, got {value!r}", argument=name)
    return float(value)
