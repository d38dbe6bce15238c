"""A stream of predictions: the rows of one file as checked `Predictions` blocks, in bounded memory."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calattn import checks
from calattn.errors import Args, BadRowError, InputError, InputWarning
from calattn.files.predictions import PredictionFileError
from calattn.readers.choice import Choice, ReadOptions
from calattn.readers.fields import FieldFile, Role, Values
from calattn.readers.labels import LabelParser, distinct_labels, is_number, kept_rows
from calattn.types import Predictions

Rows = Sequence[int] | np.ndarray

# 2**20 values are 8 MB in float64: large enough that the work per block vanishes, small compared with torch itself.
_VALUES_PER_BLOCK = 1 << 20
# So many labels that all agree with the model, which itself is not so sure, are more often its predictions.
_SUSPECT_ROWS, _SUSPECT_CONFIDENCE = 100, 0.95
_TENSORS = ("logits", "labels", "scale", "stated_probs", "features", "indices")
_ROUNDING = 0.02  # how far rounded rows may sum from 1 without a word


class PredictionStream:
    """Iterates over a file as `Predictions` blocks; every `for` starts again at the first row.

    `num_rows` is None where only reading to the end would tell (CSV, or rows that are left out). Row numbers in errors
    count from 0 over the whole file. After a pass, `num_ignored` is the number of rows left out; within one, `block_rows` are
    the rows of the file that the latest block holds, after `whole` all that it gave.
    """

    def __init__(
        self,
        source: FieldFile,
        choice: Choice,
        options: ReadOptions,
        *,
        labels: Values | None,
        rows_per_block: int | None,
    ) -> None:
        self._source, self._choice, self._labels = source, choice, labels
        self.path, self.address, self.kind = source.path, source.address, choice.kind
        self.num_classes, self.class_names = choice.num_classes, choice.class_names
        self.ignored = choice.ignored  # the labels whose rows are left out
        self._floor, self._sum_tolerance = options.floor, options.sum_tolerance
        self._farthest_sum = 1.0
        self._said: set[str] = set()  # warnings already given, in an earlier pass too
        self.split = source.split if options.split is None else options.split
        texts = (source.fields[name].text_bytes // 8 for name in (choice.labels, choice.indices) if name is not None)
        self._width = choice.num_classes + choice.num_features + sum(texts)
        self.rows_per_block = rows_per_block or max(1, _VALUES_PER_BLOCK // self._width)
        self._source_rows = source.fields[choice.values[0]].rows
        self.num_rows = None if choice.ignored else self._source_rows
        self.num_ignored = 0
        self.block_rows: Rows = range(0)
        if labels is not None and self._source_rows is not None:
            self._check_label_count(self._source_rows)

    @property
    def num_bytes(self) -> int:
        """How large it is, about: as float32 in memory or, where that is more or not known, uncompressed as text or on disk."""
        return max(4 * self._width * (self._source_rows or 0), self._source.num_bytes)

    @property
    def labelled(self) -> bool:
        """Whether there are labels; without them, which `labels_optional=True` allows, the blocks have none."""
        return self._labels is not None or self._choice.labels is not None

    def whole(self) -> Predictions:
        """All rows at once; beside them, only a block is held."""
        found, rows = _Whole(self._source_rows), []
        try:
            for block in self:
                found.add(block)
                rows.append(self.block_rows)
            self.block_rows = rows[0] if len(rows) == 1 else np.concatenate(rows)
            return found.predictions()
        except MemoryError:
            raise PredictionFileError(
                f"its {found.done:,} rows and more do not fit into memory",
                subject=self.address,
                remedy="read it with calattn.stream_predictions",
            ) from None

    def __iter__(self) -> Iterator[Predictions]:
        choice, source = self._choice, self._source
        one_scale = choice.scale is not None and source.fields[choice.scale].scalar
        temperature = source.whole(choice.scale or "") if one_scale else None
        roles: dict[str | None, Role] = dict.fromkeys(choice.values, "real")
        roles |= {None if one_scale else choice.scale: "real", choice.features: "real"}
        roles |= {choice.indices: "integer", choice.labels: "label"}
        wanted = {name: role for name, role in roles.items() if name is not None}
        reader = LabelParser(
            choice.num_classes,
            choice.class_names,
            choice.label_offset,
            offset_given=choice.offset_given,
            numbers_may_be_names=choice.named_labels,
        )
        if self._labels_are_ambiguous:
            reader.settle(self._distinct_labels)
        start, seen, suspicion = 0, 0, _Suspicion()
        for raw in source.blocks(wanted, self.rows_per_block):
            count = len(raw[choice.values[0]])
            rows: Rows = range(start, start + count)
            try:
                if choice.leftover and start == 0:
                    _refuse_counters(raw, choice.values)
                labels = self._labels_of(raw, start, count)
                if labels is not None and (kept := kept_rows(labels, choice.ignored)) is not None:
                    raw, labels, rows = {name: each[kept] for name, each in raw.items()}, labels[kept], start + kept
                block = self._assembled(raw, labels, reader, temperature) if len(rows) else None
            except ValueError as error:
                found = PredictionFileError.of(error, subject=source.address)
                raise found.at(np.asarray(rows) - source.first_row) from error
            start, seen = start + count, seen + len(rows)
            if block is not None:
                if self.labelled:
                    suspicion.see(block)
                self.block_rows = rows
                yield block
        self._check_end(start, seen)
        for doubt in self._doubts(suspicion):
            if str(doubt) not in self._said:
                self._said.add(str(doubt))
                warnings.warn(doubt, stacklevel=2)

    def _doubts(self, suspicion: _Suspicion) -> Iterator[InputWarning]:
        if suspicion.text and not self._source.is_ours:
            remedy = ("if they are, every number here is wrong; pass ", Args(labels="…"), " with the true ones")
            labels = "the labels" if self._choice.labels is None else repr(self._choice.labels)
            yield InputWarning(f"{labels} {suspicion.text}", subject=self.address, remedy=remedy)
        if abs(self._farthest_sum - 1) > _ROUNDING:
            yield InputWarning(
                f"each row of probabilities was divided by its sum, which is as far from 1 as {self._farthest_sum:.3g}",
                subject=self.address,
                remedy="if these are sigmoids, one for each class, that is not a softmax",
            )

    def _check_end(self, rows: int, seen: int) -> None:
        self.num_ignored = rows - seen
        if rows == 0:
            raise PredictionFileError(f"{self.address} has column names but no rows", remedy="save at least one sample")
        if self._labels is not None:
            self._check_label_count(rows)
        if seen == 0:
            raise PredictionFileError(
                (f"all of its {rows} labels are left out by ", Args(ignore_index=self.ignored)),
                subject=self.address,
                remedy="pass another",
            )

    @property
    def _labels_are_ambiguous(self) -> bool:
        """Whether a block could be read as numbers and the whole as names: then all labels are looked at first."""
        if not any(is_number(name) for name in self.class_names or ()) or not self.labelled:
            return False
        if self._labels is not None:
            text = isinstance(self._labels, np.ndarray) and self._labels.dtype.kind in "US"
            return self._labels.shape[1:] in ((), (1,)) and (text or self._choice.named_labels)
        field = self._source.fields[self._choice.labels or ""]
        kinds = ("text", "cell", "integer", "real") if self._choice.named_labels else ("text", "cell")
        return field.tail in ((), (1,)) and field.type in kinds

    @functools.cached_property
    def _distinct_labels(self) -> np.ndarray:
        if self._labels is not None:
            return distinct_labels([self._labels], self.ignored)
        name = self._choice.labels or ""
        blocks = self._source.blocks({name: "label"}, self.rows_per_block)
        return distinct_labels((raw[name] for raw in blocks), self.ignored)

    def _labels_of(self, raw: dict[str, Values], start: int, count: int) -> Values | None:
        labels = self._labels[start : start + count] if self._labels is not None else raw.get(self._choice.labels or "")
        if labels is not None and len(labels) != count:
            raise ValueError(f"labels has {start + len(labels)} entries but the file has more rows")
        return labels

    def _assembled(
        self, raw: dict[str, Values], labels: Values | None, reader: LabelParser, temperature: Values | None
    ) -> Predictions:
        choice = self._choice
        # Labels first: of a multi-label file the rows do not sum to 1 either, and that is not what is wrong with it.
        classes = None if labels is None else reader(labels)
        values = self._matrix(raw)
        count = values.shape[0]
        logits = self._log_probs(values) if choice.kind == "probs" else values
        scale = None
        if temperature is not None:
            scale = checks.as_tensor(temperature, "scale").to(torch.float64).reshape(1).expand(count)
        elif choice.scale is not None:
            scale = _real(raw[choice.scale], choice.scale)
        return Predictions(
            logits=logits,
            labels=classes,  # type: ignore[arg-type]
            scale=scale,
            stated_probs=self._stated(values) if choice.kind == "probs" else None,
            features=None if choice.features is None else _real(raw[choice.features], choice.features),
            indices=None if choice.indices is None else _integers(raw[choice.indices]),
            class_names=choice.class_names,
            split=self.split,
            spec_hash=self._source.spec_hash,
        )

    def _matrix(self, raw: dict[str, Values]) -> Tensor:
        choice = self._choice
        if len(choice.values) > 1:
            columns = [_numbers(np.asarray(raw[name]), name) for name in choice.values]
            return _real(np.stack(columns, axis=1), choice.kind)
        values = _real(raw[choice.values[0]], choice.values[0])
        if not choice.binary:
            return values
        one = values.reshape(-1).to(torch.float64)  # 1 − p in the precision of p would lose what is left of it
        if choice.kind == "logits":
            return torch.stack([torch.zeros_like(one), one], dim=1)  # softmax of (0, z) is the sigmoid of z
        outside = ~((one >= 0) & (one <= 1))
        if outside.any():
            row = checks.first(outside)
            percent = bool(((one >= 0) & (one <= 100)).all())
            hint = "divide by 100 if it is per cent, or " if percent else ""
            raise BadRowError(
                f"is {float(one[row])}, not in [0, 1]",
                argument="probs",
                row=row,
                remedy=(f"{hint}pass ", Args(kind="logits"), " if it is a logit"),
            )
        return torch.stack([1 - one, one], dim=1)

    def _log_probs(self, probs: Tensor) -> Tensor:
        """Log-probabilities after the checks; the tolerance is that of the file's own precision."""
        tolerance = self._sum_tolerance
        if tolerance is None:
            tolerance = 1e-3 if self._source.is_text else checks.sum_tolerance(probs.dtype)
        probs = checks.widened(checks.matrix(probs, "probs"))
        use_logits = ("pass ", Args(kind="logits"), " if these are logits")
        larger = (", or a larger ", Args(sum_tolerance=None), " if the file was rounded")
        _, sums = checks.probabilities(probs, tolerance, negative=use_logits, otherwise=(*use_logits, *larger))
        farthest = float(sums[(sums - 1).abs().argmax()])
        self._farthest_sum = max(self._farthest_sum, farthest, key=lambda total: abs(total - 1))
        return probs.clamp_min(self._floor).log()

    def _stated(self, probs: Tensor) -> Tensor | None:
        """The probabilities as the file states them, unless they were floored or are too roughly rounded for the metrics."""
        exact = checks.widened(probs).dtype == probs.dtype and self._floor == 0.0
        within = bool(((probs.sum(dim=1) - 1).abs() <= checks.sum_tolerance(probs.dtype)).all()) if exact else False
        return probs if within else None

    def _check_label_count(self, rows: int) -> None:
        assert self._labels is not None
        if len(self._labels) != rows:
            raise PredictionFileError(f"{self.address} has {rows} rows but labels has {len(self._labels)} entries")


class _Suspicion:
    """Whether labels look like the model's own predictions; costs nothing after the first row that differs."""

    def __init__(self) -> None:
        self._rows, self._confidence, self._all_alike = 0, 0.0, True

    def see(self, block: Predictions) -> None:
        self._all_alike = self._all_alike and bool((block.logits.argmax(dim=1) == block.labels).all())
        if self._all_alike:
            self._rows += len(block)
            self._confidence += float(block.probs.amax(dim=1).double().sum())

    @property
    def text(self) -> str:
        if not self._all_alike or self._rows <= _SUSPECT_ROWS:
            return ""
        if (mean := self._confidence / self._rows) > _SUSPECT_CONFIDENCE:
            return ""
        return (
            f"equals the class with the highest score in all {self._rows:,} rows, at a mean confidence of {mean:.2f}: these "
            "may be predictions instead of true labels"
        )


class _Whole:
    """The blocks of one file, joined as they come; unlike the parts of `Predictions.cat`, one may lack what another has."""

    def __init__(self, rows: int | None) -> None:
        self._rows, self.done = rows, 0
        self._tensors: dict[str, Tensor] = {}
        self._beside: dict[str, Any] = {}

    def add(self, block: Predictions) -> None:
        new = {name: tensor for name in _TENSORS if (tensor := getattr(block, name)) is not None}
        if not self.done:
            self._beside = {name: getattr(block, name) for name in ("class_names", "split", "spec_hash")}
            self._tensors = {name: _empty(tensor, self._rows or len(block)) for name, tensor in new.items()}
        stop = self.done + len(block)
        for name, kept in list(self._tensors.items()):
            if name not in new:
                del self._tensors[name]
                continue
            if len(kept) < stop:  # text does not say how many rows there are: half as many again, each time
                kept = torch.cat([kept, _empty(kept, max(stop - len(kept), len(kept) // 2))])
            kept = kept.to(torch.promote_types(kept.dtype, new[name].dtype))
            kept[self.done : stop] = new[name]
            self._tensors[name] = kept
        self.done = stop

    def predictions(self) -> Predictions:
        tensors: dict[str, Any] = {name: kept[: self.done] for name, kept in self._tensors.items()}
        return Predictions(**tensors, **self._beside)


def _empty(like: Tensor, rows: int) -> Tensor:
    try:
        return like.new_empty((rows, *like.shape[1:]))
    except RuntimeError as error:  # torch has no other kind for it
        raise MemoryError(str(error)) from None


def _real(values: Values, name: str) -> Tensor:
    tensor = checks.as_tensor(_numbers(values, name), name)
    # Integers are exact in float64; a column of hard 0/1 probabilities is often stored as such.
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)


def _numbers(values: Values, name: str) -> Values:
    if isinstance(values, np.ndarray) and values.dtype.kind in "USO":
        remedy = ("pass ", Args(ignore=[name]), " if it holds no scores")
        raise InputError(f"{name!r} holds text, numbers are needed", remedy=remedy)
    return values


def _refuse_counters(raw: dict[str, Values], names: tuple[str, ...]) -> None:
    """An index that became a class would be a silent error; scores do not count up by one from row to row."""
    for name in names:
        column = np.asarray(raw[name])
        # Two rows of hard probabilities may read 0, 1; three cannot count.
        if column.dtype.kind in "iuf" and len(column) > 2 and (np.diff(column.astype(np.float64)) == 1).all():
            or_classes = (", or ", Args(columns=[...]), " with the class columns if it is one")
            raise InputError(
                f"{name!r} counts the rows ({column[0]:g}, {column[1]:g}, {column[2]:g}, …), so it is not a class",
                remedy=("pass ", Args(ignore=[name]), *or_classes),
            )


def _integers(values: Values) -> Tensor | None:
    """Sample indices, or None where they are names after all."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "U":
        try:
            values = values.astype(np.int64)
        except ValueError:
            return None
    tensor = checks.as_tensor(values, "indices").reshape(-1)
    return None if tensor.is_floating_point() else tensor.to(torch.int64)


@contextlib.contextmanager
def naming_rows_of_file(rows: Rows) -> Iterator[None]:
    """Errors about a row of predictions are about that row of their file, which holds `rows` of it."""
    try:
        yield
    except InputError as error:
        if error.row is None:
            raise
        raise error.at(rows) from error
