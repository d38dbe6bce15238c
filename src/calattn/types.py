"""The values that cross the seams: what a model gives out, and what the CPU side reads."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn import checks
from calattn.errors import Args, BadRowError, InputError, InputWarning

Kind = Literal["logits", "probs"]  # of the values: scores before the softmax, or after
NO_LABEL = -1


class ModelOutput(NamedTuple):
    """What a head returns: raw logits, per-sample scale, the features it read; calibrated logits are derived.

    `calibrated_logits = logits / scale + offset` (Eq. 2 of the paper; Dirichlet and taught heads have an offset).

    >>> out = ModelOutput(torch.tensor([[2.0, 0.0]]), torch.tensor([2.0]), torch.zeros(1, 4))
    >>> out.calibrated_logits
    tensor([[1., 0.]])
    """

    logits: Float[Tensor, "b c"]
    scale: Float[Tensor, " b"]
    features: Float[Tensor, "b d"]
    offset: Float[Tensor, "b c"] | None = None

    @property
    def calibrated_logits(self) -> Float[Tensor, "b c"]:
        if (
            self.scale.ndim != 1
        ):  # [n, 1] and [n, c] would be broadcast to [n, n, c]; the look at a shape waits for no device
            raise ValueError(_not_a_scale(self.scale, self.logits))
        scale = self.scale.unsqueeze(1)
        return self.logits / scale if self.offset is None else torch.addcdiv(self.offset, self.logits, scale)

    @property
    def probs(self) -> Float[Tensor, "b c"]:
        return self.calibrated_logits.softmax(dim=1)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """Logits and labels of one split, checked once: the seam between the GPU side and the CPU side.

    `logits` are raw, but for a head's offset (`from_output`); `scale` is the per-sample temperature, so that
    `calibrated_logits = logits / scale`. Half-precision
    logits are widened to float32. −inf logits (probability zero) are allowed, NaN and +inf are not. `stated_probs` are
    probabilities that were given as such (`from_probs`): metrics read them as they stand, so that a stated 0.9 stays 0.9.
    Without `labels`, as for new images, all of them are −1, `labelled` is false, and what needs labels refuses them.

    >>> p = Predictions(logits=torch.tensor([[2.0, 0.0], [0.0, 1.0]]), labels=torch.tensor([0, 0]))
    >>> len(p), p.num_classes
    (2, 2)
    """

    logits: Float[Tensor, "n c"]
    labels: Int[Tensor, " n"] = None  # type: ignore[assignment]  # a tensor from __post_init__ on
    scale: Float[Tensor, " n"] | None = None
    features: Float[Tensor, "n d"] | None = None
    stated_probs: Float[Tensor, "n c"] | None = None
    indices: Int[Tensor, " n"] | None = None
    class_names: tuple[str, ...] | None = None
    split: str | None = None
    spec_hash: str | None = None

    def __new__(cls, *given: object, **_: object) -> Self:
        if given:
            got = ", ".join(type(value).__name__ for value in given)
            raise ValueError(
                "Predictions takes its fields by name: Predictions(logits=…, labels=…), or for probabilities "
                f"Predictions.from_probs(probs, labels); got {got}"
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        if isinstance(self.logits, ModelOutput):
            raise ValueError("logits is a ModelOutput: use Predictions.from_output(output, labels)")
        logits = checks.widened(checks.matrix(self.logits, "logits", labels=self.labels))
        put("logits", logits)
        checks.finite_rows(logits.amax(dim=1), "logits", logits)
        n, num_classes = logits.shape
        put("labels", _checked_labels(self.labels, logits))
        if looks_like_probs(logits):
            warnings.warn(_like_probs(), stacklevel=3)
        if self.stated_probs is not None and (self.scale is not None or self.stated_probs.shape != logits.shape):
            raise ValueError("stated_probs needs the shape of the logits and no scale; use Predictions.from_probs")
        if self.scale is not None:
            put("scale", checked_scale(checks.as_tensor(self.scale, "scale"), logits))
        if self.features is not None:
            put("features", _checked_features(checks.as_tensor(self.features, "features"), n))
        if self.indices is not None:
            indices = checks.as_tensor(self.indices, "indices")
            if indices.ndim != 1 or indices.shape[0] != n or indices.is_floating_point():
                raise ValueError(f"indices must be {n} integers, got {indices.dtype} {list(indices.shape)}")
            put("indices", indices.to(torch.int64))
        if self.class_names is not None:
            put("class_names", tuple(str(name) for name in self.class_names))
            if len(self.class_names) != num_classes:
                raise ValueError(f"class_names has {len(self.class_names)} names for {num_classes} classes")

    @classmethod
    def from_probs(
        cls, probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"] | None = None, *, floor: float = 0.0, **fields: Any
    ) -> Self:
        """Predictions whose logits are log-probabilities.

        A probability of exactly 0 becomes a logit of −inf and an NLL of ∞ if it was the label's: that is what the file
        states. `floor` (such as 1e-6) replaces smaller probabilities first, for models that emit exact zeros, such as forests.
        """
        given = checks.matrix(probs, "probs", labels=labels)
        probs = checks.widened(given)
        use_logits = "pass logits as Predictions(logits=…)"
        checks.probabilities(probs, checks.sum_tolerance(given.dtype), negative=use_logits, otherwise=_NOT_PROBS)
        keep = floor == 0.0 and fields.get("scale") is None and given.dtype == probs.dtype
        logits = probs.clamp_min(floor).log()
        return cls(logits=logits, labels=labels, stated_probs=probs if keep else None, **fields)  # type: ignore[arg-type]

    @classmethod
    def from_output(cls, output: ModelOutput, labels: Int[Tensor, " n"] | None = None, **fields: Any) -> Predictions:
        """Predictions of a model's output, detached, whatever head made it.

        Logits and the scale are kept apart. An offset becomes part of the logits, ℓ + s · offset, so that `logits / scale` is
        the head's output.
        """
        features = fields.pop("features", output.features.detach())
        logits, scale = output.logits.detach(), output.scale.detach()
        if output.offset is not None:
            logits = logits + scale.unsqueeze(1) * output.offset.detach()
        return cls(logits=logits, scale=scale, labels=labels, features=features, **fields)  # type: ignore[arg-type]

    @staticmethod
    def cat(parts: Iterable[Predictions]) -> Predictions:
        """The rows of several predictions of one model, one part after another, on the device of the first.

        All parts must hold the same fields. `split` and `spec_hash` stay where all parts agree, `stated_probs` where all
        have them (else their logarithms, the logits, are the same up to rounding).

        >>> p = Predictions(logits=torch.tensor([[2.0, 0.0], [0.0, 1.0]]), labels=torch.tensor([0, 0]))
        >>> Predictions.cat([p, p]).labels
        tensor([0, 0, 0, 0])
        """
        return _joined([parts] if isinstance(parts, Predictions) else list(parts))

    def __len__(self) -> int:
        return self.logits.shape[0]

    @property
    def num_classes(self) -> int:
        return self.logits.shape[1]

    @property
    def labelled(self) -> bool:
        """Whether the true classes are known."""
        return int(self.labels[0]) != NO_LABEL

    def check_labelled(self) -> None:
        """Refuses predictions without labels."""
        if not self.labelled:
            raise InputError(
                "predictions has no labels, and this needs the true class of each sample",
                remedy=("give them: ", Args("p.replace(labels=…)", labels="…")),
            )

    @property
    def calibrated_logits(self) -> Float[Tensor, "n c"]:
        return self.logits if self.scale is None else self.logits / self.scale.unsqueeze(1)

    @property
    def probs(self) -> Float[Tensor, "n c"]:
        return self.calibrated_logits.softmax(dim=1) if self.stated_probs is None else self.stated_probs

    def __repr__(self) -> str:
        parts = [f"{len(self)} samples", f"{self.num_classes} classes", str(self.logits.dtype).removeprefix("torch.")]
        parts += [] if self.labelled else ["no labels"]
        parts += [name for name in ("scale", "features", "indices", "class_names") if getattr(self, name) is not None]
        parts += [f"split={self.split!r}"] if self.split else []
        return f"Predictions({', '.join(parts)})"

    def replace(self, **changes: object) -> Predictions:
        """A copy with some fields changed, checked again. New logits or a new scale end what was stated."""
        if {"logits", "scale"} & set(changes):
            changes = {"stated_probs": None} | changes
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def select(self, index: Tensor) -> Predictions:
        """The rows named by an index or boolean tensor."""

        def rows(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[index]

        return self.replace(
            logits=self.logits[index],
            labels=self.labels[index],
            scale=rows(self.scale),
            stated_probs=rows(self.stated_probs),
            features=rows(self.features),
            indices=rows(self.indices),
        )

    def shuffle_split(self, fraction: float, generator: torch.Generator) -> tuple[Predictions, Predictions]:
        """Two disjoint random parts; the first holds `fraction` of the rows."""
        first = round(checks.in_unit_interval(fraction, "fraction") * len(self))
        if not 0 < first < len(self):
            raise InputError((Args(fraction=fraction), f" of {len(self)} rows leaves one part empty"))
        order = torch.randperm(len(self), generator=generator).to(self.labels.device)
        return self.select(order[:first]), self.select(order[first:])

    def blocks(self, max_elements: int = 1 << 18) -> Iterator[tuple[Tensor, Tensor]]:
        """(calibrated logits, labels) in consecutive row blocks that fit a core's L2 cache."""
        for rows in row_blocks(len(self), self.num_classes, max_elements):
            logits = self.logits[rows]
            yield (
                (logits if self.scale is None else logits / self.scale[rows].unsqueeze(1)),
                self.labels[rows],
            )

    def fingerprint(self) -> str:
        """A short content hash: labels, scale and up to 256 evenly spaced logit rows."""
        of_all = Fingerprint(len(self))
        of_all.add(self)
        return of_all.text()


class Fingerprint:
    """`Predictions.fingerprint` of predictions that come in blocks, of so many rows in all.

    >>> p = Predictions(logits=torch.tensor([[2.0, 0.0], [0.0, 1.0]]), labels=torch.tensor([0, 0]))
    >>> of_all = Fingerprint(2)
    >>> for row in (0, 1):
    ...     of_all.add(p.select(torch.tensor([row])))
    >>> of_all.text() == p.fingerprint()
    True
    """

    def __init__(self, rows: int) -> None:
        self._step, self._seen = max(1, rows // 256), 0
        self._labels, self._logits, self._scale = hashlib.sha256(), bytearray(), bytearray()

    def add(self, block: Predictions) -> None:
        """The next rows."""
        self._labels.update(_bytes_of(block.labels))
        self._logits += _bytes_of(block.logits[-self._seen % self._step :: self._step])
        self._scale += b"" if block.scale is None else _bytes_of(block.scale)
        self._seen += len(block)

    def text(self) -> str:
        """Of the rows so far."""
        digest = self._labels.copy()
        digest.update(self._logits)
        digest.update(self._scale)
        return digest.hexdigest()[:16]


def _bytes_of(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().numpy().tobytes()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One number of a report, a fraction, with its interval where one was computed."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None

    def numbers(self) -> dict[str, float | None]:
        """value, low and high; None for NaN, which is what an AUROC is where everything is right."""
        found = {"value": self.value, "low": self.low, "high": self.high}
        return {part: None if number is None or math.isnan(number) else number for part, number in found.items()}

    def text(self) -> str:
        """The value, eight wide, and its interval.

        >>> MetricRow(name="ece", value=0.125, low=0.1, high=0.15).text(), MetricRow(name="ece", value=math.nan).text().strip()
        ('  0.1250  [0.1000, 0.1500]', '–')
        """
        value, low, high = self.numbers().values()
        shown = "–" if value is None else f"{value:.4f}"
        return f"{shown:>8}" + ("" if low is None or high is None else f"  [{low:.4f}, {high:.4f}]")


def given_predictions(
    predictions: Any = None, *more: object, logits: Any = None, probs: Any = None, labels: Any = None
) -> Any:
    """The predictions, or blocks of them, as they are; else those of arrays (NumPy, torch, pandas), which must be named.

    >>> given_predictions(probs=[[0.25, 0.75]], labels=[1]).probs
    tensor([[0.2500, 0.7500]], dtype=torch.float64)
    """
    arrays = [each for each in (logits, probs) if each is not None]
    if predictions is None and not more and len(arrays) == 1:
        return _of_arrays(arrays[0], labels, is_probs=logits is None)
    check_source(predictions, *more)
    if predictions is None or arrays or labels is not None:
        values = {"predictions": predictions, "logits": logits, "probs": probs, "labels": labels}
        got = ", ".join(name for name, value in values.items() if value is not None)
        raise ValueError(
            "give either predictions, which hold their labels, or logits (or probs) and labels by name; "
            f"got {got or 'nothing'}"
        )
    return predictions


def check_source(predictions: object, *labels: object) -> None:
    """Predictions, or something that gives them, and nothing else: other libraries take logits and labels."""
    if labels or isinstance(predictions, Tensor | np.ndarray):
        got = ", ".join(type(value).__name__ for value in (predictions, *labels))
        raise ValueError(
            "predictions must be calattn.Predictions, or blocks of them; build it with "
            f"Predictions(logits=…, labels=…) or read_predictions(path); got {got}"
        )


def _of_arrays(values: Any, labels: Any, *, is_probs: bool) -> Predictions:
    """Columns of a pandas table that are no numbers are the class names, and labels may then be names too."""
    columns = [str(name) for name in getattr(values, "columns", ())]
    names = tuple(columns) if columns and not all(name.isdecimal() for name in columns) else None
    if not isinstance(values, Tensor):
        values = np.array(values, dtype=np.float64) if isinstance(values, list) else np.asarray(values)
    if labels is not None and not isinstance(labels, Tensor):
        labels = np.array(np.asarray(labels).tolist())  # objects of pandas become what they are
        labels = _positions(labels, names) if labels.dtype.kind == "U" else labels
    if is_probs:
        return Predictions.from_probs(checks.as_tensor(values, "probs"), labels, class_names=names)
    return Predictions(logits=checks.as_tensor(values, "logits"), labels=labels, class_names=names)


def _positions(labels: np.ndarray, names: tuple[str, ...] | None) -> np.ndarray:
    """Class names as class indices."""
    if names is None:
        remedy = "give class indices, or a pandas table whose columns are the class names"
        raise InputError(f"labels are text such as {str(labels.flat[0])!r}", remedy=remedy)
    place = {name: k for k, name in enumerate(names)}
    found = np.array([place.get(label, NO_LABEL) for label in labels.tolist()])
    if (unknown := found == NO_LABEL).any():
        row = int(unknown.argmax())
        raise InputError(f"is {labels[row]!s}, which is no column ({', '.join(names[:5])})", argument="labels", row=row)
    return found


def row_blocks(n: int, width: int, max_elements: int = 1 << 18) -> Iterator[slice]:
    """Consecutive row slices of at most `max_elements` entries each.

    2**18 float32 values are 1 MB: a block stays in L2 between the handful of passes made over it, which is where the
    speed of the metrics comes from (measured: 4 ms per pass over 50,000 × 1,000 in cache, 20 ms from memory).
    """
    step = max(1, max_elements // max(1, width))
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))


def looks_like_probs(logits: Float[Tensor, "n c"]) -> bool:
    """Whether the first rows are all non-negative with sum 1, which eight rows of logits are not by chance."""
    head = logits[:64].double()
    return len(head) >= 8 and bool((head >= 0).all()) and bool(((head.sum(dim=1) - 1).abs() < 1e-3).all())


def _like_probs() -> InputWarning:
    # At a shell they came from a file, where they are called logits: only with their name does a kind help.
    use = Args("Predictions.from_probs(probs, labels)", kind="probs", columns="…")
    return InputWarning(
        "logits look like probabilities: every row is non-negative and sums to 1", remedy=("if they are, use ", use)
    )


def _not_a_scale(scale: Tensor, logits: Tensor) -> str:
    """Of a head's scale with a shape that is not [n]."""
    remedy = "give one factor per class as the offset log(factor), ModelOutput(logits, scale, features, offset)"
    if scale.ndim == 0:
        remedy = "one for all is scale.expand(len(logits))"
    elif scale.shape[1:].numel() == 1:
        remedy = "squeeze(1) it"
    return (
        f"scale must have shape [{logits.shape[0]}], one number per sample, got {list(scale.shape)} for logits "
        f"{list(logits.shape)}; {remedy}"
    )


def checked_scale(scale: Tensor, logits: Tensor) -> Tensor:
    """A scale [n] or [n, 1] for these logits, positive and finite."""
    if scale.ndim == 2 and scale.shape[1] == 1:
        scale = scale.squeeze(1)
    if scale.shape != logits.shape[:1]:
        raise ValueError(f"scale must have shape [{logits.shape[0]}], got {list(scale.shape)}")
    scale = scale.to(device=logits.device, dtype=logits.dtype)
    bad = ~(torch.isfinite(scale) & (scale > 0))
    if bad.any():
        index = checks.first(bad)
        problem = f"is {float(scale[index])}, not positive and finite"
        raise BadRowError(problem, argument="scale", row=index)
    return scale


_NOT_PROBS = (
    "pass logits as Predictions(logits=…), divide rounded probabilities by their sum; outputs of a sigmoid for each class are "
    f"multi-label: {checks.ONE_TRUE_CLASS}"
)
_NOT_FITTING = {
    "scale": "give all one, p.replace(scale=torch.ones(len(p))), or none, p.replace(logits=p.calibrated_logits, scale=None)",
    "features": "leave them out, p.replace(features=None)",
    "indices": "leave them out, p.replace(indices=None)",
    "class_names": "give all the same, p.replace(class_names=…)",
}


def _joined(parts: list[Predictions]) -> Predictions:
    if not parts or not all(isinstance(part, Predictions) for part in parts):
        got = ", ".join(sorted({type(part).__name__ for part in parts})) or "an empty list"
        raise ValueError(f"parts must be a list of one or more Predictions, got {got}")
    first, fields = parts[0], {}
    for place, part in enumerate(parts):
        if part.num_classes != first.num_classes:
            raise ValueError(
                f"parts[{place}] has {part.num_classes} classes and parts[0] has {first.num_classes}; "
                "join predictions of one model"
            )
        for name, remedy in _NOT_FITTING.items():
            ours, theirs = _kind_of(getattr(first, name)), _kind_of(getattr(part, name))
            if ours != theirs:
                raise ValueError(f"{name} of parts[{place}] is {theirs}, that of parts[0] is {ours}; {remedy}")
    for name in ("logits", "labels", "scale", "features", "stated_probs", "indices"):
        found = [getattr(part, name) for part in parts]
        missing = any(value is None for value in found)
        fields[name] = None if missing else torch.cat([value.to(first.logits.device) for value in found])
    for name in ("split", "spec_hash"):
        fields[name] = getattr(first, name) if len({getattr(part, name) for part in parts}) == 1 else None
    return first.replace(**fields)


def _kind_of(value: Tensor | tuple[str, ...] | None) -> str:
    """What has to be alike in two parts: that there is such a field, the width of a matrix, the names themselves."""
    if isinstance(value, Tensor):
        return "there" if value.ndim == 1 else f"{value.shape[1]} wide"
    return "missing" if value is None else repr(value)


def _checked_labels(labels: Any, logits: Tensor) -> Tensor:
    """int64 [n]; without labels all −1, which is also how other programs mark what has none."""
    if labels is None:
        return torch.full((len(logits),), NO_LABEL, device=logits.device)
    given = checks.as_tensor(labels, "labels")
    if given.shape == logits.shape[:1] and not given.is_floating_point() and bool((given == NO_LABEL).all()):
        return given.to(device=logits.device, dtype=torch.int64)
    return checks.labels_for(given, "labels", logits.shape, logits.device)


def _checked_features(features: Tensor, n: int) -> Tensor:
    if features.ndim != 2 or features.shape[0] != n or not features.is_floating_point():
        raise ValueError(f"features must be floating point [{n}, d], got {features.dtype} {list(features.shape)}")
    bad = ~torch.isfinite(features).all(dim=1)
    if bad.any():
        raise BadRowError("has a NaN or infinite entry", argument="features", row=checks.first(bad))
    return features
