"""The choice: what the caller knows about a file, and with it every field that will be read, before the first row is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from calattn import checks
from calattn.errors import Args
from calattn.readers import names as known
from calattn.readers.fields import FieldFile
from calattn.readers.names import Chooser
from calattn.types import Kind

LabelsArg = str | Path | np.ndarray | Tensor | Sequence[int] | Sequence[str] | None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReadOptions:
    """The options of `read_predictions` and `stream_predictions`.

    `kind`: logits or probabilities, where the names do not tell. `columns` names them: one array or
    list column, a pattern such as "out_*", or one column per class. `labels` names the labels, or is an array of them, or the
    Path of an .npy file. Fields in `ignore` are left alone. Rows whose label, as written in the file, is `ignore_index` (or
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """One name in `values` is an array or list column (or, if `binary`, class 1); several are one per class."""

    kind: Kind
    values: tuple[str, ...]
    binary: bool
    # The values are columns that nothing else explained, so one of them may be no class at all.
    leftover: bool
    num_classes: int
    class_names: tuple[str, ...] | None
    labels: str | None
    label_offset: int
    # The caller gave the offset, so that labels are numbers.
    offset_given: bool
    # The caller named the classes and no offset: labels that are numbers may be names ("-1", "1").
    named_labels: bool
    # Labels whose rows are left out, as written in the file.
    ignored: tuple[int, ...]
    scale: str | None
    features: str | None
    num_features: int
    indices: str | None


def choose(source: FieldFile, options: ReadOptions, *, labels_given: bool, ignored: tuple[int, ...]) -> Choice:
    """Settle which fields are what, by name or by option; what stays open is an error with what to pass."""
    labels = options.labels if isinstance(options.labels, str) else None
    columns, label_offset, class_names = options.columns, options.label_offset, options.class_names
    chooser = Chooser(source, options.ignore, labels=labels, labels_given=labels_given)
    found_kind, values = chooser.values(options.kind, columns)
    classes: tuple[str, ...] | None = None
    offset_given = label_offset is not None
    named_labels = class_names is not None and not offset_given and not source.is_ours
    if len(values) > 1:
        values, classes, label_offset = _ordered(chooser, values, columns, label_offset)
    num_classes, binary = _width(chooser, values, explicit=options.kind is not None)
    label_field = None if labels_given else chooser.labels(values, optional=options.labels_optional)
    scale = chooser.one_of(known.SCALE, "scale")
    if scale is not None and found_kind == "probs":
        raise chooser.fail(
            f"there are probabilities and {scale!r}, which may be in them already",
            ("pass ", Args(ignore=[scale]), " if it is, else save logits"),
        )
    feature_field = chooser.one_of(known.FEATURES, "features") if options.features else None
    if options.features is True and feature_field is None:
        raise chooser.fail("there are no features", ("pass ", Args(features=False)))
    choice = Choice(
        kind=found_kind,
        values=values,
        binary=binary,
        leftover=columns == "*" and "*" not in source.fields,
        num_classes=num_classes,
        class_names=_class_names(chooser, class_names, classes, num_classes),
        labels=label_field,
        label_offset=label_offset or 0,
        offset_given=offset_given,
        named_labels=named_labels,
        ignored=ignored,
        scale=scale,
        features=feature_field,
        num_features=0 if feature_field is None else math.prod(source.fields[feature_field].tail),
        indices=_indices(chooser),
    )
    _check_shapes(chooser, choice)
    return choice


def _ordered(
    chooser: Chooser, values: tuple[str, ...], columns: str | Sequence[str] | None, label_offset: int | None
) -> tuple[tuple[str, ...], tuple[str, ...] | None, int | None]:
    """Class columns in class order, their class names if they have any, and the label offset they imply."""
    if columns is not None and not isinstance(columns, str):
        suffixes = known.class_suffixes(values)  # the caller's own order
        return values, None if all(s.isdecimal() for s in suffixes) else suffixes, label_offset
    if isinstance(columns, str):
        suffixes = tuple(name.removeprefix(columns.partition("*")[0]) for name in values)
    else:
        suffixes = known.class_suffixes(values)
    if not any(suffix.isdecimal() for suffix in suffixes):
        return values, suffixes, label_offset
    if not all(suffix.isdecimal() for suffix in suffixes):
        odd = next(name for name, suffix in zip(values, suffixes, strict=True) if not suffix.isdecimal())
        remedy = ("pass ", Args(columns=[...]), " with the class columns")
        raise chooser.fail(f"{odd!r} is among numbered class columns", remedy)
    # prob_10 comes after prob_9, whatever the file's own order.
    pairs = sorted(zip((int(suffix) for suffix in suffixes), values, strict=True))
    numbers, count = [number for number, _ in pairs], len(pairs)
    if numbers == list(range(1, count + 1)):
        if label_offset is None:
            from_0 = (", ", Args(label_offset=0), " if they start at 0")
            raise chooser.fail(
                f"class columns are numbered 1…{count}",
                ("pass ", Args(label_offset=1), " if the labels are too", *from_0),
            )
    elif numbers != list(range(count)):
        missing = next(i for i, number in enumerate(numbers) if number != i)
        raise chooser.fail(f"class columns are not numbered 0…{count - 1}: {missing} is missing or repeated")
    return tuple(name for _, name in pairs), None, label_offset


def _width(chooser: Chooser, values: tuple[str, ...], *, explicit: bool) -> tuple[int, bool]:
    """The number of classes, and whether one value per row is the score of class 1 of two."""
    fields = [chooser.source.fields[name] for name in values]
    if len(values) > 1:
        wide = next((name for name, field in zip(values, fields, strict=True) if field.tail), None)
        if wide is not None:
            raise chooser.fail(f"{wide!r} is not one number per row, so it cannot be one class of several")
        return len(values), False
    field, name = fields[0], values[0]
    if field.type == "object" or field.scalar or len(field.tail) > 1:
        raise chooser.fail(
            f"{name!r} is {field}, and logits or probabilities must be numbers of shape [n, c]",
            _flattening(chooser, name),
        )
    if field.tail in ((), (1,)):
        if not explicit:
            kinds = (Args(kind="probs"), " or ", Args(kind="logits"))
            raise chooser.fail(
                f"{name!r} is one value per row", ("if it is the score of class 1 in a binary problem, pass ", *kinds)
            )
        return 2, True
    return field.tail[0], False


def _flattening(chooser: Chooser, name: str) -> str:
    """What makes rows of pixels or tokens, where the labels (or, without any, four axes) show that they are classified."""
    fields = chooser.source.fields
    labels = next((each for each in chooser.names if chooser.is_label(each)), None)
    code = checks.flattening(
        (0, *fields[name].tail),
        None if labels is None else (0, *fields[labels].tail),
        values=name if name.isidentifier() else "logits",
        labels=labels if labels and labels.isidentifier() else "labels",
    )
    return f"one row per label: {code}" if code else ""


def _class_names(
    chooser: Chooser, given: Sequence[str] | None, suffixes: tuple[str, ...] | None, num_classes: int
) -> tuple[str, ...] | None:
    names = tuple(given) if given is not None else chooser.source.class_names
    field = None if chooser.source.is_table else chooser.one_of(known.CLASS_NAMES, "class names")
    if names is None and field is not None and chooser.source.fields[field].type in ("text", "object"):
        whole = chooser.source.whole(field)  # an object array fails here, with the remedy
        names = tuple(n.decode() if isinstance(n, bytes) else str(n) for n in whole.reshape(-1).tolist())
    if names is None:
        names = suffixes
    if names is not None and len(names) != num_classes:
        remedy = ("pass ", Args(class_names=[...]))
        raise chooser.fail(f"there are {len(names)} class names for {num_classes} classes", remedy)
    return names


def _indices(chooser: Chooser) -> str | None:
    """Integer sample indices; identifiers that are anything else (file names, say) are none of ours."""
    found = [name for name in chooser.names if name.lower() in known.INDICES]
    usable = [name for name in found if chooser.source.fields[name].type in ("integer", "text", "cell")]
    return usable[0] if len(usable) == 1 and not chooser.source.fields[usable[0]].tail else None


def _check_shapes(chooser: Chooser, choice: Choice) -> None:
    fields = chooser.source.fields
    if choice.labels is not None and fields[choice.labels].tail not in ((), (1,), (choice.num_classes,)):
        raise chooser.fail(
            f"labels {choice.labels!r} are {fields[choice.labels]}, not one class per row, nor one-hot with "
            f"{choice.num_classes} classes; save the class of each row"
        )
    if choice.features is not None and len(fields[choice.features].tail) != 1:
        raise chooser.fail(f"features {choice.features!r} are {fields[choice.features]}, not [n, d]")
    rows = fields[choice.values[0]].rows
    for name in (choice.labels, choice.scale, choice.features, choice.indices):
        if name is not None and not fields[name].scalar and fields[name].rows != rows:
            raise chooser.fail(
                f"{name!r} has {fields[name].rows} rows but {choice.values[0]!r} has {rows}; save them from one run"
            )
    if rows == 0:
        raise chooser.fail(f"{choice.values[0]!r} has no rows", "save at least one sample")
    if choice.num_classes < 2:
        raise chooser.fail(f"{choice.values[0]!r} has {choice.num_classes} classes", "save one column per class")
