"""The per-sample temperature: a CalAttn head trained on stored logits (SATS) or features (frozen CalAttn)."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from calattn import checks
from calattn.errors import Args, InputError
from calattn.heads.base import EPSILON, cosine_adamw, moments
from calattn.heads.joint import CalAttn
from calattn.posthoc import contract
from calattn.posthoc.base import Calibrator, Learned, finite_logits, rescaled, seeded
from calattn.posthoc.modules import LOWEST_LOGIT, HeadScaledLogits, centred
from calattn.posthoc.newton import check_labels_possible
from calattn.posthoc.temperature import ece_curve, nll_temperature
from calattn.types import Predictions, row_blocks

# The single temperature that training starts from; outside, softplus' slope is too small or its bias too
# large to learn.
_START_RANGE = (0.02, 50.0)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class ScaleHeadCalibrator(Calibrator):
    """T(x) = Softplus(w2ᵀ GELU(W1 z + b1) + b2) + ε on standardised inputs z, trained with AdamW in float32.

    The fitting data are split once more: a part trains, the share `holdout` judges each epoch, and the best
    is kept. Training starts from the NLL-optimal single temperature; that start and T = 1 are candidates as
    well, so that a head that learns nothing useful falls back to plain temperature scaling, or to nothing.
    Without a `generator` the split, the initial weights and the batches come from seed 0.
    """

    hidden: int = 128
    epochs: int = 30
    batch_size: int = 256
    learning_rate: float = 0.03
    weight_decay: float = 0.1
    holdout: float = 0.2
    generator: torch.Generator | None = dataclasses.field(default=None, repr=False)
    _reads_logits: ClassVar[bool] = False
    weights_: dict[str, Tensor] = dataclasses.field(init=False, repr=False)
    mean_: Float[Tensor, " d"] = dataclasses.field(init=False, repr=False)
    std_: Float[Tensor, " d"] = dataclasses.field(init=False, repr=False)
    epoch_: int = dataclasses.field(init=False, repr=False)
    """The epoch kept; 0 is the single temperature before training, −1 is T = 1."""
    history_: Float[Tensor, " k"] = dataclasses.field(init=False, repr=False)
    """Hold-out score of T = 1, of the start, and of each epoch."""

    def __post_init__(self) -> None:
        for name in ("hidden", "epochs", "batch_size"):
            checks.positive_int(getattr(self, name), name)
        checks.positive(self.learning_rate, "learning_rate")
        if not 0.0 < self.holdout < 1.0:
            raise ValueError(f"holdout must be between 0 and 1, got {self.holdout!r}")
        if self.generator is not None:
            checks.generator(self.generator)
        if not self.weight_decay >= 0.0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay!r}")

    @abc.abstractmethod
    def _inputs(self, predictions: Predictions) -> Float[Tensor, "n d"]:
        """What the head reads, before standardisation."""

    @abc.abstractmethod
    def _loss(self, log_probs: Float[Tensor, "b c"], labels: Tensor) -> Tensor:
        """The mean training loss of a batch."""

    @abc.abstractmethod
    def _score(self, predictions: Predictions) -> float:
        """What epochs are chosen by, on the hold-out; lower is better."""

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        if len(predictions) < 2:
            raise ValueError("predictions has one row; a part to train on and a part to choose by need at least two")
        check_labels_possible(predictions)
        generator = seeded(self.generator)
        train, judge = predictions.shuffle_split(1.0 - self.holdout, generator)
        inputs = self._inputs(train)
        mean, std = moments(inputs)
        inputs, judged_inputs = _standardised(inputs, mean, std), _standardised(self._inputs(judge), mean, std)
        learned: dict[str, Learned] = {"mean_": mean.cpu(), "std_": std.cpu()}

        def judged(head: CalAttn) -> float:
            scale = _scale(head, judged_inputs)
            # Training that blew up is an epoch that loses, not a reason to fail.
            return self._score(rescaled(judge, scale)) if torch.isfinite(scale).all() else math.inf

        head = _identity_head(inputs.shape[1], self.hidden, generator).to(inputs.device)
        best, kept = _copied(head), -1
        history = [judged(head)]
        start = nll_temperature(train, _START_RANGE, stacklevel=4).temperature
        with torch.no_grad():
            head.mlp.fc2.bias.fill_(math.log(math.expm1(start - EPSILON)))
        history.append(judged(head))
        if history[1] < history[0]:
            best, kept = _copied(head), 0
        for epoch in self._train(head, inputs, train, generator):
            history.append(judged(head))
            if history[-1] < min(history[:-1]):
                best, kept = _copied(head), epoch
        history_ = torch.tensor(history, dtype=torch.float64)
        return learned | {"weights_": best, "epoch_": kept, "history_": history_}

    def _train(self, head: CalAttn, inputs: Tensor, train: Predictions, generator: torch.Generator) -> Iterator[int]:
        """Yields after each epoch; the learning rate falls to zero along a cosine."""
        logits = train.calibrated_logits
        logits = (logits - logits.amax(dim=1, keepdim=True)).clamp_min_(LOWEST_LOGIT).float()
        # Adam moves every weight by about the rate, and a unit sums d of them: √d keeps 8 and 768 features alike.
        rate = self.learning_rate / math.sqrt(inputs.shape[1])
        steps = self.epochs * math.ceil(len(train) / self.batch_size)
        optimiser, schedule = cosine_adamw(head, learning_rate=rate, weight_decay=self.weight_decay, steps=steps)
        for epoch in range(1, self.epochs + 1):
            order = torch.randperm(len(train), generator=generator).to(inputs.device)
            for rows in order.split(self.batch_size):
                # index_select copies rows; indexing by [rows] goes element by element, five times slower.
                scaled = head(inputs.index_select(0, rows), logits.index_select(0, rows)).calibrated_logits
                loss = self._loss(scaled.log_softmax(dim=1), train.labels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
            yield epoch

    @property
    def head_(self) -> CalAttn:
        """The fitted head; it reads `(features − mean_) / std_`."""
        self._check_fitted()
        num_features, hidden = self.mean_.shape[0], self.weights_["mlp.fc1.weight"].shape[0]
        head = _identity_head(num_features, hidden, seeded(None))
        head.load_state_dict(self.weights_)
        return head.eval()

    def temperatures(self, predictions: Predictions) -> Float[Tensor, " n"]:
        """The temperature of each sample."""
        inputs = self._inputs(predictions)
        if inputs.shape[1] != self.mean_.shape[0]:
            raise ValueError(f"{type(self).__name__} was fitted on {self.mean_.shape[0]} inputs, got {inputs.shape[1]}")
        return _scale(self.head_.to(inputs.device), _standardised(inputs, self.mean_, self.std_))

    def _apply(self, predictions: Predictions) -> Predictions:
        return rescaled(predictions, self.temperatures(predictions))

    def _try_out(self, logits: Tensor) -> None:
        features = torch.zeros(2, self._num_features()) if self._num_features() else None
        contract.applied(self, Predictions(logits=logits, features=features))

    def _module(self) -> HeadScaledLogits:
        parts = {"logits": self._reads_logits, "features": self._num_features() > 0}
        return HeadScaledLogits(self.num_classes_, self.head_, self.mean_, self.std_, **parts)

    def _num_features(self) -> int:
        return len(self.mean_) - self._reads_logits * self.num_classes_


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class SATS(ScaleHeadCalibrator):
    """Sample-adaptive temperature scaling as the paper runs it: an MLP on the logits gives T(x).

    After Joy et al. 2023. T is trained on cross-entropy for 10 epochs, and the epoch with the lowest ECE on the
    hold-out is kept. The paper says no more; we centre each row's logits (softmax does not see their mean) and
    standardise them. `inputs` may add the stored features, the paper's option. The VAE that Joy et al. put over
    the features is not part of it.

    >>> logits = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> p = Predictions(logits=logits, labels=torch.arange(200) % 3)
    >>> SATS(epochs=1, hidden=4).fit(p).weights_["mlp.fc1.weight"].shape
    torch.Size([4, 3])
    """

    epochs: int = 10
    inputs: Literal["logits", "logits+features"] = "logits"
    num_bins: int = 15
    _reads_logits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive_int(self.num_bins, "num_bins")
        if self.inputs not in ("logits", "logits+features"):
            raise ValueError(f"inputs must be 'logits' or 'logits+features', got {self.inputs!r}")

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        finite_logits(predictions)  # here, where row numbers are still the caller's
        return super()._fit(predictions)

    def _inputs(self, predictions: Predictions) -> Float[Tensor, "n d"]:
        logits = centred(finite_logits(predictions))
        if self.inputs == "logits":
            return logits
        return torch.cat([logits, _features_of(predictions).to(logits)], dim=1)

    def _loss(self, log_probs: Float[Tensor, "b c"], labels: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        return functional.nll_loss(log_probs, labels)

    def _score(self, predictions: Predictions) -> float:
        return float(ece_curve(predictions, [1.0], num_bins=self.num_bins))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class FrozenCalAttn(ScaleHeadCalibrator):
    """s(z) = Softplus(w2ᵀ GELU(W1 z + b1) + b2) + ε on features z, fitted by CE + λ·Brier with fixed logits.

    This is the setting of the paper's proposition (conditional optimality with frozen logits): where p(y|x) =
    softmax(ℓ/s*), both terms are least at s*, so the head estimates s* for every λ ≥ 0. `weight` is λ. The
    epoch with the lowest CE + λ·Brier on the hold-out is kept.

    >>> g = torch.Generator().manual_seed(0)
    >>> logits, features = torch.randn(200, 3, generator=g), torch.randn(200, 5, generator=g)
    >>> p = Predictions(logits=logits, labels=torch.arange(200) % 3, features=features)
    >>> FrozenCalAttn(hidden=4, epochs=1).fit(p).head_.mlp.fc1
    Linear(in_features=5, out_features=4, bias=True)
    """

    weight: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight >= 0.0:
            raise ValueError(f"weight (λ) must not be negative, got {self.weight!r}")

    def _inputs(self, predictions: Predictions) -> Float[Tensor, "n d"]:
        return _features_of(predictions)

    def _loss(self, log_probs: Float[Tensor, "b c"], labels: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        loss = functional.nll_loss(log_probs, labels)
        return loss if self.weight == 0.0 else loss + self.weight * _brier(log_probs, labels).mean()

    def _score(self, predictions: Predictions) -> float:
        total = 0.0
        for logits, labels in predictions.blocks():
            total += float(self._loss(logits.double().log_softmax(dim=1), labels)) * len(labels)
        return total / len(predictions)


def _brier(log_probs: Tensor, labels: Tensor) -> Tensor:
    """‖p − e_y‖² = Σ p² − 2 p_y + 1, without the one-hot matrix."""
    probs = log_probs.exp()
    picked = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
    return torch.linalg.vecdot(probs, probs) - 2 * picked + 1


def _features_of(predictions: Predictions) -> Float[Tensor, "n d"]:
    """`predictions.features`, or an error that says how to get them."""
    if predictions.features is None:
        where = Args("Predictions(..., features=...), predict_proba(..., features=...)", features=...)
        raise InputError(
            "the method reads predictions.features, which these predictions do not hold",
            remedy=("store the classifier's input with them: ", where),
        )
    return predictions.features


def _identity_head(num_features: int, hidden: int, generator: torch.Generator) -> CalAttn:
    """A fresh head with its first layer drawn from the generator: `nn.Linear` itself uses the global one."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        head = CalAttn(num_features, hidden=hidden)
        bound = 1.0 / math.sqrt(num_features)
        head.mlp.fc1.weight.uniform_(-bound, bound, generator=generator)
    return head


def _copied(head: CalAttn) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in head.state_dict().items()}


def _standardised(inputs: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """What the head reads, in float32 from float64, block by block."""
    mean, std = mean.to(inputs.device), std.to(inputs.device)
    found = torch.empty_like(inputs, dtype=torch.float32)
    for rows in row_blocks(*inputs.shape):
        found[rows] = inputs[rows].double().sub_(mean).div_(std)
    return found


@torch.no_grad()
def _scale(head: CalAttn, inputs: Tensor) -> Tensor:
    """The head's output in blocks of rows, because the hidden layer of 50,000 samples takes 25 MB a copy."""
    return torch.cat([head(block, block).scale for block in inputs.split(4096)])
