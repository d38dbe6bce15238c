"""Remedies: what to do about arrays that are not one distribution and one true class a row, for tensors and for files."""

from __future__ import annotations

from collections.abc import Sequence

ONE_TRUE_CLASS = "every metric here is of one true class a row; take each class as a binary problem of its own"


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


def not_one(total: float, tolerance: float, *, otherwise: str) -> str:
    """What follows "sums to …, not 1".

    >>> not_one(99.9, 1e-4, otherwise="pass logits")
    ': these look like per cent; divide by 100'
    """
    # Per cent are rounded to a digit or two more often than fractions are.
    if abs(total - 100) <= 100 * max(tolerance, 0.01):
        return ": these look like per cent; divide by 100"
    return f"; {otherwise}"
