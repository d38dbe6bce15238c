"""The calibrator: fitted on one split's predictions, applied to another's."""

from __future__ import annotations

import abc
import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from calattn import checks
from calattn.checks import ArrayLike
from calattn.errors import Args, InputError, InputWarning
from calattn.posthoc import contract
from calattn.registry import Registry
from calattn.types import Predictions, given_predictions, row_blocks

# `typing.Self` would do, but beartype, which checks annotations in the tests, takes it in decorated classes only.
F = TypeVar("F", bound="Fitted")
_MOST_CLASSES = 1 << 20  # in a file that is not damaged
Learned = Tensor | dict[str, Tensor] | float | int | bool | str


class NotFittedError(InputError, AttributeError):
    """A calibrator was used before `fit`. An AttributeError too, so that `hasattr` works."""


class SameDataWarning(InputWarning):
    """A calibrator is applied to the very predictions it was fitted on, which says nothing about new data."""


class FitWarning(InputWarning):
    """A fit ended without an optimum: at a bound, or out of iterations."""


class AbsentClassWarning(FitWarning):
    """A calibrator that learns something for each class was fitted on a split without samples of some."""


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Fitted(abc.ABC):
    """What is fitted on predictions and kept in a file: options are constructor arguments, learned values end in `_`."""

    by_class: ClassVar[bool] = False
    """Whether something is learned for each class, which takes samples of each."""

    num_classes_: int = dataclasses.field(init=False, repr=False)
    fitted_on_: str = dataclasses.field(init=False, repr=False)
    num_samples_: int = dataclasses.field(init=False, repr=False)
    """How many it was fitted on."""

    @abc.abstractmethod
    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        """The learned values by name, one a field with `init=False`. Sets nothing, so a failing refit leaves all as it was."""

    def fit(self: F, predictions: Any = None, labels: Any = None, *, probs: Any = None) -> F:
        """Learn from one split, and return self: `fit(predictions)`, `fit(logits, labels)` or `fit(probs=…, labels=…)`.

        Arrays may be NumPy's, torch's or pandas'.

        >>> from calattn.posthoc import TemperatureScaling
        >>> round(TemperatureScaling().fit([[2.0, 0.0]] * 4, [0, 0, 0, 1]).temperature_, 4)  # 2 / ln 3
        1.8205
        """
        if probs is not None or (labels is not None and not isinstance(predictions, Predictions)):
            predictions = given_predictions(logits=predictions, probs=probs, labels=labels)
            labels = None
        check_predictions(predictions, *([] if labels is None else [labels]))
        predictions.check_labelled()
        return self._keep(predictions, self._fit(predictions))

    def _keep(self: F, predictions: Predictions, learned: dict[str, Learned]) -> F:
        contract.check_learned(type(self), learned)
        if self.by_class:
            _warn_of_absent_classes(predictions, type(self).__name__)
        learned = learned | {"num_classes_": predictions.num_classes, "num_samples_": len(predictions)}
        for name, value in (learned | {"fitted_on_": predictions.fingerprint()}).items():
            setattr(self, name, value)
        return self

    def restore(self, learned: dict[str, Any]) -> None:
        """Take learned values from a file, or fail where they are damaged; of other people's classes the checksum alone tells."""
        ours = type(self).__module__.startswith("calattn.")
        if ours:
            contract.check_restored(type(self), learned)
        for name, value in learned.items():
            setattr(self, name, value)
        if ours:
            if not 2 <= self.num_classes_ <= _MOST_CLASSES:
                raise ValueError(f"num_classes_ is {self.num_classes_}")
            self._try_out(torch.randn(2, self.num_classes_, generator=seeded(None)))

    @abc.abstractmethod
    def _try_out(self, logits: Tensor) -> None:
        """Fails where learned values do not fit each other, or the number of classes."""

    def warn_if_fitted_on(self, fingerprint: str, *, stacklevel: int = 2) -> None:
        """A `SameDataWarning` where that is the fingerprint of what it was fitted on."""
        if fingerprint == self.fitted_on_:
            warnings.warn(
                f"{type(self).__name__} is applied to the predictions it was fitted on; "
                "calibration error measured there is too good. Fit on a validation split instead",
                SameDataWarning,
                stacklevel=stacklevel,
            )

    def __repr__(self) -> str:
        """The options, and after `fit` the learned numbers and the shapes of learned tensors."""
        options = (field.name for field in dataclasses.fields(self) if field.init and field.repr)
        parts = [f"{name}={getattr(self, name)!r}" for name in options]
        learned = {name: vars(self)[name] for name in self.learned_names() if name in vars(self)}
        parts += [f"{name}={_brief(value)}" for name, value in learned.items() if name != "fitted_on_"]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_") and not name.startswith("_"):
            raise NotFittedError(f"{type(self).__name__} has no {name}: call fit(predictions) first")
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _check_fitted(self) -> None:
        if "num_classes_" not in vars(self):
            raise NotFittedError(f"{type(self).__name__} is not fitted: call fit(predictions) first")

    def check_classes(self, num_classes: int) -> None:
        """Refuse predictions of another number of classes than those it was fitted on."""
        self._check_fitted()
        if num_classes != self.num_classes_:
            raise ValueError(
                f"{type(self).__name__} was fitted on {self.num_classes_} classes, but predictions has {num_classes}"
            )

    @classmethod
    def learned_names(cls) -> tuple[str, ...]:
        """Names of what `fit` learns and a file holds."""
        return tuple(field.name for field in dataclasses.fields(cls) if not field.init)

    def options(self) -> dict[str, Any]:
        """The constructor arguments a file holds: all but the random generator, which only `fit` uses."""
        names = (field.name for field in dataclasses.fields(self) if field.init)
        return {name: getattr(self, name) for name in names if name != "generator"}

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, over one that is there; see `calattn.posthoc.load`."""
        from calattn.posthoc import files

        self._check_fitted()
        files.save(self, path)

    @classmethod
    def load(cls: type[F], path: str | Path) -> F:
        """Read what `save` wrote, checking that it is one of this class."""
        from calattn.posthoc import files

        calibrator = files.load_any(path)
        if not isinstance(calibrator, cls):
            raise ValueError(f"{path} holds a {type(calibrator).__name__}, not a {cls.__name__}")
        return calibrator


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Calibrator(Fitted):
    """Maps predictions to better calibrated ones after `fit` on a held-out split.

    Options are constructor arguments, learned values end in `_` and exist only after `fit`. Every calibrator
    reads `predictions.calibrated_logits`, so calibrators compose with CalAttn's scale and with each other.

    >>> from calattn.posthoc import TemperatureScaling
    >>> TemperatureScaling().temperature_
    Traceback (most recent call last):
    ...
    calattn.posthoc.base.NotFittedError: TemperatureScaling has no temperature_: call fit(predictions) first
    """

    @abc.abstractmethod
    def _apply(self, predictions: Predictions) -> Predictions:
        """Calibrated predictions; labels, features, indices, class names and split are kept."""

    def __call__(self, predictions: Predictions) -> Predictions:
        """The predictions, calibrated."""
        calibrated = self.apply_to_block(predictions)
        self.warn_if_fitted_on(predictions.fingerprint(), stacklevel=3)
        return calibrated

    def _try_out(self, logits: Tensor) -> None:
        contract.applied(self, Predictions(logits=logits))

    def apply_to_block(self, predictions: Predictions) -> Predictions:
        """The same of some rows of a larger file: that it was fitted on these says nothing of the others, so no warning."""
        check_predictions(predictions)
        self.check_classes(predictions.num_classes)
        return contract.applied(self, predictions)

    def predict_proba(
        self, logits: ArrayLike, *, scale: ArrayLike | None = None, features: ArrayLike | None = None
    ) -> Float[Tensor, "n c"]:
        """Calibrated probabilities of logits without labels; `scale` and `features` are those of `Predictions`.

        >>> from calattn.posthoc import TemperatureScaling
        >>> p = Predictions(logits=torch.tensor([[2.0, 0.0]] * 4), labels=torch.tensor([0, 0, 0, 1]))
        >>> TemperatureScaling().fit(p).predict_proba(torch.tensor([[2.0, 0.0]]))
        tensor([[0.7500, 0.2500]])
        """
        predictions = Predictions(
            logits=checks.matrix(logits, "logits"),
            scale=None if scale is None else checks.as_tensor(scale, "scale"),
            features=None if features is None else checks.as_tensor(features, "features"),
        )
        self.check_classes(predictions.num_classes)
        return contract.applied(self, predictions).probs

    def module(self) -> nn.Module:
        """The fitted calibrator as a module that maps logits (and features, where it reads them) to calibrated logits.

        It goes behind a network, `nn.Sequential(network, calibrator.module())`, with a state dict of its own; where the network
        has a scale, it reads the logits divided by it, which is what an attached model gives. It computes in float32.

        >>> from calattn.posthoc import TemperatureScaling
        >>> p = Predictions(logits=torch.tensor([[2.0, 0.0]] * 4), labels=torch.tensor([0, 0, 0, 1]))
        >>> TemperatureScaling().fit(p).module()(torch.tensor([[2.0, 0.0]])).softmax(dim=1)
        tensor([[0.7500, 0.2500]])
        """
        self._check_fitted()
        return self._module().float()

    def _through_module(self, predictions: Predictions) -> Predictions:
        """Calibrated by the module, block by block in float64."""
        logits = predictions.calibrated_logits
        module: Any = self._module().to(logits.device)
        found = torch.empty_like(logits)
        for rows in row_blocks(*logits.shape):
            found[rows] = module.map(logits[rows].double()).to(found)
        return predictions.replace(logits=found, scale=None)

    def _module(self) -> nn.Module:
        kind = type(self).__name__
        raise ValueError(
            f"{kind} has no module; call {kind}.predict_proba(logits) behind the network, or write _module()"
        )


def check_predictions(*given: object) -> None:
    """One argument, and it is `Predictions`: other libraries take logits and labels."""
    if len(given) != 1 or not isinstance(given[0], Predictions):
        if len(given) == 1 and isinstance(given[0], list | tuple) and any(isinstance(p, Predictions) for p in given[0]):
            raise ValueError("predictions is a list: join its parts with Predictions.cat(parts)")
        got = ", ".join(type(value).__name__ for value in given)
        raise ValueError(
            "predictions must be calattn.Predictions; build it with Predictions(logits=…, labels=…) "
            f"or read_predictions(path); got {got}"
        )


def _warn_of_absent_classes(predictions: Predictions, who: str) -> None:
    """The fit takes a class that it has not seen for impossible, and says so with all the certainty that it can learn."""
    absent = (predictions.labels.bincount(minlength=predictions.num_classes) == 0).nonzero().squeeze(1).tolist()
    if not absent:
        return
    named = [str(k) if predictions.class_names is None else predictions.class_names[k] for k in absent[:5]]
    which = ", ".join(named) + (", …" if len(absent) > 5 else "")
    warnings.warn(
        f"{len(absent)} of the {predictions.num_classes} classes ({which}) {'has' if len(absent) == 1 else 'have'} no sample: "
        f"{who} takes what it has not seen for impossible, so NLL is large or infinite where it occurs. Fit on a split with "
        "samples of every class, or use temperature scaling, which does not need them",
        AbsentClassWarning,
        stacklevel=4,
    )


def _brief(value: Learned) -> str:
    """A learned value in a few characters: numbers to four digits, of tensors the shape."""
    if isinstance(value, Tensor):
        return f"Tensor{list(value.shape)}"
    if isinstance(value, dict):
        return f"{len(value)} tensors"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def rescaled(predictions: Predictions, temperature: Tensor | float) -> Predictions:
    """The predictions with their per-sample scale multiplied by a temperature; raw logits stay."""
    factor = torch.as_tensor(temperature, dtype=predictions.logits.dtype, device=predictions.logits.device)
    before = torch.ones_like(predictions.logits[:, 0]) if predictions.scale is None else predictions.scale
    return predictions.replace(scale=before * factor)


def finite_logits(predictions: Predictions) -> Tensor:
    """Calibrated logits for methods that mix or standardise them, where −inf has no meaning."""
    logits = predictions.calibrated_logits
    bad = logits.amin(dim=1) == -torch.inf  # without a mask as large as the logits
    if bad.any():
        raise InputError(
            "has a −inf entry (probability 0), which the method cannot transform",
            argument="logits",
            row=checks.first(bad),
            remedy=("pass ", Args("Predictions.from_probs(..., floor=1e-6)", floor="1e-6")),
        )
    return logits


def seeded(generator: torch.Generator | None) -> torch.Generator:
    """The caller's generator, or a fresh one with seed 0, so that a fit without one repeats as well."""
    return torch.Generator().manual_seed(0) if generator is None else generator


# What others call these, or their nearest kin: Platt's sigmoid is vector scaling of two classes, and beta calibration is
# Dirichlet calibration of two.
_ALIASES = (
    dict.fromkeys(("ts", "temp", "temperature_scaling"), "temperature")
    | dict.fromkeys(("platt", "platt_scaling", "sigmoid", "logistic", "vs", "vector_scaling"), "vector")
    | dict.fromkeys(("ms", "matrix_scaling"), "matrix")
    | dict.fromkeys(("hb", "histogram_binning", "binning"), "histogram")
    | {"ets": "ensemble", "svs": "structured_vector", "sms": "structured_matrix", "ivap": "venn_abers"}
    | {"ir": "isotonic", "isotonic_regression": "isotonic", "beta": "dirichlet"}
)

CALIBRATORS: Registry[Callable[..., Calibrator]] = Registry("calibrator", aliases=_ALIASES)
OTHERS: dict[str, type[Fitted]] = {}
"""What else a file may hold, by name."""
