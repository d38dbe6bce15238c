"""The run as data: everything that decides a result, checked, with a stable hash; and the YAML it is written in."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from calattn.errors import InputError
from calattn.files.atomic import PathArg
from calattn.files.missing import why_missing
from calattn.rules import Rule

Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

TAUGHT_HEADS = ("taught", "taught_classwise", "taught_scale")  # those of `heads.taught.KINDS`, without importing torch

_WEIGHTS = ("pretrained", "checkpoint_path", "cache_dir", "weights")  # by which timm's loaders are told of files
_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+")  # which YAML 1.1 takes for text


class SpecError(InputError):
    """A spec that cannot be read or run; the message names the file or key and the remedy."""


def first_problem(error: ValidationError) -> str:
    """Of what pydantic finds wrong: the key, and why."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    _later: ClassVar[tuple[str, ...]] = ()  # keys that came to be after specs had been written

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Later keys are left out where they are empty: specs written before they were there keep their content and hash."""
        found: dict[str, Any] = handler(self)
        return {key: value for key, value in found.items() if key not in self._later or value is not None}


class DataSpec(Section):
    _later = ("mean", "std")

    name: str = Field("cifar10", description="a data set (`calattn data list`), imagefolder:PATH or parquet:PATH")
    size: Count | None = Field(None, description="side of the images the network sees; empty: as they are")
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    validation: Annotated[float, Field(gt=0, lt=1)] = Field(0.05, description="share of the training images held out")
    split_seed: int = Field(
        0, description="draws the validation images; kept apart from `seed` so that seeds share a split"
    )
    limit: Count | None = Field(
        None, description="use only N training and N test images (trials): the first, or as many of each class"
    )
    mean: tuple[float, ...] | None = Field(
        None,
        description="of pixels in [0, 1], one per channel; empty: as the pretrained weights want it, else the data set's",
    )
    std: tuple[Positive, ...] | None = Field(None, description="the standard deviation to `mean`")

    @model_validator(mode="after")
    def _both(self) -> DataSpec:
        given = [numbers for numbers in (self.mean, self.std) if numbers is not None]
        if given and (len(given) == 1 or not 0 < len(given[0]) == len(given[1])):
            raise ValueError("data.mean and data.std go together, one number per channel in each; set both")
        return self


class AugmentSpec(Section):
    crop: Annotated[int, Field(ge=0)] | Literal["resized"] = Field(
        4, description="pixels of padding before a random crop; 0: none; resized: a random part, resized (ImageNet)"
    )
    flip: bool | None = Field(None, description="random mirror; empty: where the data set allows it (not digits)")
    randaugment_ops: Annotated[int, Field(ge=0)] = Field(0, description="RandAugment operations an image; 0: off")
    randaugment_magnitude: Annotated[float, Field(ge=0, le=10)] | Literal["any"] = Field(
        9.0, description="strength of the operations; any: each image has its own strength and number of operations"
    )
    erasing: Fraction = Field(0.0, description="probability of erasing a rectangle")
    mixup: NonNegative = Field(0.0, description="α of the Beta distribution; 0: off")
    cutmix: NonNegative = Field(
        0.0, description="α of the Beta distribution; 0: off; with mixup, each pair takes one of the two"
    )


class ModelSpec(Section):
    _later = ("weights",)

    backbone: str = Field("deit_small", description="a family fitted to data.size (deit_small), ours, or any timm name")
    head: str = "calattn"
    features: Literal["cls", "patch_mean", "concat"] = "cls"
    hidden: Count = 128
    bias: bool = True
    pretrained: bool = False
    weights: str | None = Field(
        None,
        description="a state dict to start from (.safetensors, .pt): yours, of this backbone or of an attached model",
    )
    drop_path: BelowOne = 0.0
    dropout: BelowOne = 0.0
    options: dict[str, Any] = Field(default_factory=dict, description="further arguments of the backbone's constructor")

    @field_validator("options")
    @classmethod
    def _no_weights(cls, options: dict[str, Any]) -> dict[str, Any]:
        """A spec may come from anybody, and timm's loaders may unpickle the file that such an option names."""
        for key in options:
            if key in _WEIGHTS or key.startswith("pretrained_cfg"):
                raise ValueError(
                    f"model.options.{key} names weights, which options may not; use model.weights=FILE or model.pretrained=true"
                )
        return options

    @model_validator(mode="after")
    def _one_start(self) -> ModelSpec:
        if self.pretrained and self.weights:
            raise ValueError("model.pretrained and model.weights both name the weights to start from; set one")
        return self


class TeachSpec(Section):
    """The closing phase, which fills a taught head: see docs/method.md."""

    readings: Count = Field(150_000, description="distorted training images to learn from, each at most ten times")
    shifted: Count = Field(20_000, description="readings of shifted validation images, each at most ten times")
    tolerance: Fraction = Field(
        0.005, description="what images like the training set's may lose for shifted ones, as a share of their NLL"
    )
    steps: Count = Field(2_500, description="of the head's optimiser")
    learning_rate: Positive = 1e-3
    weight_decay: NonNegative = 0.1
    dropout: BelowOne = 0.2
    batch_size: Count = 512


class LossSpec(Section):
    name: str = "ce_brier"
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="the loss's own, such as weight: 0.1; a list of numbers for weights of classes",
    )

    @field_validator("options")
    @classmethod
    def _plain(cls, options: dict[str, Any]) -> dict[str, Any]:
        for key, value in options.items():
            if not (isinstance(value, bool | str) or _is_numbers(value, depth=2)):
                raise ValueError(
                    f"loss.options.{key} must be a finite number, true or false, a text or a list of numbers, got {value!r}"
                )
        return options


class OptimizerSpec(Section):
    name: str = Field("adamw", description="any optimiser timm knows")
    lr: Positive = 1e-3
    weight_decay: NonNegative = 0.05
    decay_all: bool = Field(False, description="decay biases and norms too, as plain torch does")
    options: dict[str, Any] = Field(default_factory=dict, description="the optimiser's own, such as betas or momentum")
    fused: bool | None = Field(
        None, description="one kernel for the update; empty: on GPUs, where the optimiser has it"
    )
    clip_norm: Positive | None = None
    accumulate: Count = Field(1, description="micro-batches a step; batch_size is the sum")
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="decay of the moving average of the weights, which is then what is evaluated and kept"
    )


class ScheduleSpec(Section):
    name: str = Field("cosine", description="any schedule timm knows")
    warmup_epochs: NonNegative = 0.0
    warmup_lr: NonNegative = 0.0
    min_lr: NonNegative = 0.0
    options: dict[str, Any] = Field(default_factory=dict, description="decay_milestones (in epochs), decay_rate, …")


class TrainSpec(Section):
    epochs: Annotated[int, Field(ge=0)] = Field(60, description="0: only teach the head of a network with weights")
    batch_size: Count = Field(512, description="of a step, over all devices and micro-batches")
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true"] = Field(
        "auto", description="auto: bf16-mixed on GPUs that have it, else 32-true; the run's own spec records which"
    )
    compile: bool | Literal["auto", "default", "reduce-overhead", "max-autotune"] = Field(
        "auto", description="torch.compile; auto: on CUDA GPUs"
    )
    channels_last: bool = False
    deterministic: bool = Field(False, description="only deterministic kernels (slower on GPUs; CPUs are exact anyway)")
    sync_batchnorm: bool = False


class EvaluationSpec(Section):
    batch_size: Count = 1000
    checkpoints: tuple[Rule, ...] = Field(
        ("last",), min_length=1, description="whose predictions are written at the end"
    )
    features: bool = Field(False, description="keep the features beside the logits")


class RunSpec(Section):
    """Everything that decides a run's result. Where it runs (devices, folders, worker processes) is not in it.

    >>> RunSpec().train.epochs
    60
    """

    _later = ("teach",)

    name: str | None = Field(None, description="a name for people; not part of the hash")
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    data: DataSpec = DataSpec()
    augment: AugmentSpec = AugmentSpec()
    model: ModelSpec = ModelSpec()
    teach: TeachSpec | None = Field(None, description="of taught heads; they have it even where a spec does not say so")
    loss: LossSpec = LossSpec()
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    train: TrainSpec = TrainSpec()
    evaluation: EvaluationSpec = EvaluationSpec()

    @model_validator(mode="before")
    @classmethod
    def _with_lesson(cls, values: Any) -> Any:
        """A spec says how its head is taught, whoever wrote it."""
        if isinstance(values, dict) and values.get("teach") is None and is_taught(values.get("model")):
            return {**values, "teach": {}}
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> RunSpec:
        if self.teach is not None and not is_taught(self.model):
            raise ValueError(f"teach is of taught heads, and model.head={self.model.head} is none; leave it out")
        if self.train.epochs == 0:
            self._check_only_teaches()
        micro, rest = divmod(self.train.batch_size, self.optimizer.accumulate)
        if rest:
            raise ValueError(
                f"train.batch_size={self.train.batch_size} is not a multiple of optimizer.accumulate={self.optimizer.accumulate}"
            )
        if (self.augment.mixup or self.augment.cutmix) and micro % 2:
            raise ValueError(f"mixup and cutmix pair images, so a micro-batch must be even; it is {micro}")
        return self

    def _check_only_teaches(self) -> None:
        """Without an epoch a head is taught to a network that was trained before, or nothing would be learned."""
        if self.teach is None:
            heads = f"{', '.join(TAUGHT_HEADS[:-1])} or {TAUGHT_HEADS[-1]}"
            raise ValueError(
                f"train.epochs=0 only teaches a head, and model.head={self.model.head} is not taught; train for 1 epoch or "
                f"more, or take model.head={heads}"
            )
        if not (self.model.weights or self.model.pretrained):
            raise ValueError(
                "train.epochs=0 only teaches a head, and the network is not trained; train for 1 epoch or more, or add "
                "model.weights=FILE or model.pretrained=true"
            )

    @property
    def hash(self) -> str:
        """A stable digest of all but the name and what is only written out at the end."""
        decides = self.model_dump(mode="json", exclude={"name": True, "evaluation": True})
        decides["loss"]["options"] = _as_floats(decides["loss"]["options"])
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def is_taught(model: Any) -> bool:
    """Whether the head of a `ModelSpec`, or of the values of one, is filled after training."""
    head = model.get("head") if isinstance(model, dict) else getattr(model, "head", None)
    return head in TAUGHT_HEADS


def _is_numbers(value: Any, *, depth: int) -> bool:
    """A number, a list of numbers, a list of such lists, … to that depth."""
    if isinstance(value, list):
        return depth > 0 and all(_is_numbers(each, depth=depth - 1) for each in value)
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _as_floats(value: Any) -> Any:
    """Whole numbers as floats: 3 and 3.0 are one value, and all options were floats when the first hashes were made.

    >>> _as_floats({"gamma": 3, "on": True, "weights": [1, 2.5]})
    {'gamma': 3.0, 'on': True, 'weights': [1.0, 2.5]}
    """
    if isinstance(value, dict):
        return {key: _as_floats(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_floats(each) for each in value]
    return float(value) if type(value) is int and value == float(value) else value


def yaml_text(value: dict[str, Any]) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)


def read_yaml(path: PathArg) -> dict[str, Any]:
    """The mapping in a YAML file; errors are one line and name the file, and the line where there is one."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(_why_unread(Path(path), error)) from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not text; a spec is a YAML file in UTF-8") from None
    return parse_yaml(text, str(path))


def _why_unread(path: Path, error: OSError) -> str:
    if not path.exists():
        return why_missing(path)
    if path.is_dir():
        return f"{path} is a folder; name a YAML file"
    return f"cannot read {path}: {error.strerror or error}; check that it is a file that you may read"


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """The mapping in a YAML text that goes by `name` in errors."""
    value = parse_value(text, name)
    if value is None:
        raise SpecError(f"{name} is empty; a spec is a YAML mapping such as 'seed: 1'")
    if not isinstance(value, dict):
        raise SpecError(f"{name} holds a {type(value).__name__}, not a mapping of keys to values such as 'seed: 1'")
    return value


def parse_value(text: str, name: str) -> Any:
    """Any YAML value.

    >>> parse_value("1e-3", "lr")
    0.001
    """
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.reader.ReaderError:
        raise SpecError(f"{name} is not text; a spec is a YAML file in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise SpecError(f"{name}{line}: {error.problem or error.context}; fix the YAML there") from None
    except (ValueError, RecursionError) as error:  # such as the date 2024-99-99, or brackets without end
        raise SpecError(f"{name} has a value that YAML cannot read: {error}") from None
    if _expanded(value, {}) > 1_000 + len(text):  # without aliases a value takes a letter
        raise SpecError(f"{name} holds more values by its aliases than it is long; write them out")
    return value


def _expanded(value: Any, known: dict[int, int]) -> int:
    """How many values there are in one, those that are shared counted each time."""
    if id(value) not in known:
        known[id(value)] = 0  # of one that holds itself
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        known[id(value)] = 1 + sum(_expanded(part, known) for part in parts)
    return known[id(value)]


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-3 as text and lets a second `lr:` win in silence; a spec must not be misread so."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            if isinstance(key.value, str):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that `_Loader` would read as numbers."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
