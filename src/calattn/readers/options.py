"""What the caller knows about a file that does not say it by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from calattn.readers.names import Kind

LabelsArg = str | Path | np.ndarray | Tensor | Sequence[int] | Sequence[str] | None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReadOptions:
    """The options of `read_predictions` and `stream_predictions`.

    `kind` says whether the values are logits or probabilities, where their name does not. `columns` names them: one array or
    list column, a pattern such as "out_*", or one column per class. `labels` names the labels, or is an array of them, or the
    Path of an .npy file. Fields in `ignore` are left alone. Rows whose label, as it stands in the file, is `ignore_index` (or
    among several) are left out. `floor` replaces smaller probabilities, as in `Predictions.from_probs`; `sum_tolerance` is how
    far their rows may sum from 1. `delimiter` and `header` are of text files. `labels_optional` reads files without labels too:
    `stream.labelled` is then False.

    >>> dataclasses.replace(ReadOptions(kind="probs"), label_offset=1).kind
    'probs'
    """

    kind: Kind | None = None
    columns: str | Sequence[str] | None = None
    labels: LabelsArg = None
    label_offset: int | None = None
    class_names: Sequence[str] | None = None
    ignore: Sequence[str] = ()
    ignore_index: int | Sequence[int] = ()
    features: bool | Literal["auto"] = "auto"
    split: str | None = None
    floor: float = 0.0
    sum_tolerance: float | None = None
    delimiter: str | None = None
    header: Sequence[str] | None = None
    labels_optional: bool = False
