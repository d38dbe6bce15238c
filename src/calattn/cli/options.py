"""Flags that commands share: each group is a dataclass, and `flat` spreads its fields over a command."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from calattn.cli.console import starting
from calattn.rules import RULES

if TYPE_CHECKING:
    from calattn.metrics.state import Options
    from calattn.runs.runtime import Runtime

# Panels of `--help`.
RUN, FITTING, OUTPUT, WHERE = "The run", "What is fitted", "Output", "Where it runs"
READING, MEASURING, IMAGES = "What is in the file", "What is measured", "Which images"
SCALING = "Temperature scaling"


def option(panel: str, *names: str, text: str, least: int | None = None, complete: Any = None, **more: Any) -> Any:
    """An option with its line in a panel of `--help`; `least` is the smallest number, `complete` a function of `names`."""
    return typer.Option(*names, help=text, rich_help_panel=panel, min=least, autocompletion=complete, **more)


def names(target: str, *more: str) -> Callable[[str], list[str]]:
    """What the shell may complete: the names in a registry, "module:attribute", imported when asked for, and `more`.

    The last of a comma-separated list counts.

    >>> names("calattn.runs.recipes:RECIPES", "none")("di")
    ['digits']
    """

    def complete(incomplete: str) -> list[str]:
        module, _, attribute = target.partition(":")
        before, comma, begun = incomplete.rpartition(",")
        found = [*getattr(importlib.import_module(module), attribute), *more]
        return [f"{before}{comma}{name}" for name in found if name.startswith(begun)]

    return complete


def recipe_or_spec(incomplete: str) -> list[str]:
    """Recipes, and YAML files, whose folders are completed on the way."""
    found = [
        path for path in Path().glob(f"{incomplete}*") if path.is_dir() or path.suffix.lower() in (".yaml", ".yml")
    ]
    files = [f"{path.as_posix()}/" if path.is_dir() else path.as_posix() for path in sorted(found)]
    return [*names("calattn.runs.recipes:RECIPES")(incomplete), *files]


RULE_NAMES, DATASETS = names("calattn.rules:RULES"), names("calattn.data:DATASETS")

_DATA_ROOT = "Where data sets lie; default: $CALATTN_DATA, or the user's cache folder."
Json = Annotated[bool, option(OUTPUT, "--json", text="JSON on stdout, for scripts.")]
Html = Annotated[
    Path | None, option(OUTPUT, "--html", text="Write the page: one HTML file that opens without a network.")
]
Overwrite = Annotated[bool, option(OUTPUT, "--overwrite", text="Replace a page's file that calattn did not write.")]
TableFile = Annotated[
    Path | None, option(OUTPUT, "--table", text="Write the table, methods as rows: .csv, .md or .tex (with booktabs).")
]
TableOut = Annotated[Path | None, option(OUTPUT, "--write", text="Write the table: .json, .csv, .md or .tex.")]
DataRoot = Annotated[Path | None, option(WHERE, "--data-root", text=_DATA_ROOT)]
GroupColumn = Annotated[
    str | None,
    option(
        MEASURING, "--group", metavar="COLUMN", text="Evaluate each group of rows, such as --group camera; worst first."
    ),
]
ClusterColumn = Annotated[
    str | None,
    option(
        MEASURING,
        "--cluster",
        metavar="COLUMN",
        text="Rows that are not independent, such as pixels: --cluster image. Whole clusters are resampled.",
    ),
]
Target = Annotated[
    str | None,
    option(
        MEASURING,
        "--target",
        metavar="CLASS",
        text="ECE and its kin of P(CLASS) against “the label is CLASS” instead of the predicted class; a number or a name.",
    ),
]


class Kind(enum.StrEnum):
    logits = "logits"
    probs = "probs"


_read, _measure, _scale, _where = (functools.partial(option, panel) for panel in (READING, MEASURING, SCALING, WHERE))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileFlags:
    """What the caller knows about the files; the arguments of `calattn.read_predictions`, spelt as flags."""

    kind: Annotated[Kind | None, _read("--kind", text="What the values are, where their name does not show it.")] = None
    columns: Annotated[
        str | None, _read("--columns", text="Their name, a pattern such as 'out_*', or one column per class: a,b,c.")
    ] = None
    labels: Annotated[str | None, _read("--labels", text="Name of the labels, or an .npy file of them.")] = None
    label_offset: Annotated[int | None, _read("--label-offset", text="1 where classes are counted from 1.")] = None
    class_names: Annotated[str | None, _read("--class-names", text="Names in class order: cat,dog.")] = None
    ignore: Annotated[list[str] | None, _read("--ignore", text="Fields to leave alone: a,b.")] = None
    ignore_label: Annotated[
        list[str] | None, _read("--ignore-label", text="Leave out rows with this label: -100, or several: -1,255.")
    ] = None
    floor: Annotated[float, _read("--floor", text="Raise smaller probabilities to this (forests state zeros).")] = 0.0
    sum_tolerance: Annotated[
        float | None, _read("--sum-tolerance", text="How far rows of probabilities may sum from 1 (rounded files).")
    ] = None
    delimiter: Annotated[
        str | None, _read("--delimiter", text="Of text files; found in the first line: comma, ; tab or |.")
    ] = None
    header: Annotated[str | None, _read("--header", text="Column names of a text file that has none: a,b.")] = None
    features: Annotated[
        bool,
        _read(
            "--features/--no-features",
            text="Read features where the file has them: calibrate has methods that use them.",
        ),
    ] = True

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `read_predictions` and `stream_predictions`."""
        columns = listed(self.columns)
        labels: str | Path | None = self.labels
        if self.labels is not None and (self.labels.lower().endswith(".npy") or Path(self.labels).is_file()):
            labels = Path(self.labels)
        return {
            "kind": None if self.kind is None else self.kind.value,
            "columns": columns[0] if columns and len(columns) == 1 else columns,
            "labels": labels,
            "label_offset": self.label_offset,
            "class_names": listed(self.class_names),
            "ignore": tuple(name for text in self.ignore or () for name in listed(text) or ()),
            "ignore_index": tuple(_whole(number) for text in self.ignore_label or () for number in listed(text) or ()),
            "features": "auto" if self.features else False,
            "floor": self.floor,
            "sum_tolerance": self.sum_tolerance,
            "delimiter": self.delimiter.replace("\\t", "\t") if self.delimiter else None,
            "header": listed(self.header),
        }


FILE_FLAGS = FileFlags()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """Which metrics, and how; the arguments of `calattn.evaluate`, spelt as flags."""

    metrics: Annotated[
        list[str] | None,
        _measure(
            "--metrics",
            "-m",
            text="Some of calattn list metrics: ece,nll. Empty: all (tables of evaluate or of several methods: the main ones).",
            complete=names("calattn.metrics:METRICS"),
        ),
    ] = None
    bins: Annotated[int, _measure("--bins", text="Bins of the binned errors.")] = 15
    bandwidth: Annotated[float, _measure("--bandwidth", text="Of smECE; 0: chosen from the data.")] = 0.05
    threshold: Annotated[float, _measure("--threshold", text="What high confidence is.")] = 0.9
    level: Annotated[float, _measure("--level", text="Of the intervals.")] = 0.95
    bootstrap: Annotated[
        int | None, _measure("--bootstrap", text="Resamples; 0: no intervals. Empty: 1,000, or 200 for large files.")
    ] = None
    resample_seed: Annotated[int, _measure("--resample-seed", text="Draws the resamples.")] = 0

    def options(self) -> Options:
        """Checked: a wrong number of bins or threshold fails here, before reading."""
        from calattn.metrics.state import Options

        return Options(num_bins=self.bins, bandwidth=self.bandwidth or None, threshold=self.threshold)

    def compared(self, target: str | None) -> dict[str, Any]:
        """The arguments with every metric by its name: `calattn.compare` then says which it had to leave out."""
        from calattn.metrics.state import METRICS, WITH_EVENT

        found = self.arguments()
        every = [name for name in METRICS if target is None or name in WITH_EVENT]
        return found | {"metrics": found["metrics"] or every}

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `calattn.evaluate` and `calattn.compare`; unknown metrics fail here, before reading.

        Each call gives a generator in its first state: every column of a table sees the same resamples.
        """
        import torch

        from calattn.metrics import METRICS

        names = [name for text in self.metrics or () for name in listed(text) or ()]
        for name in names:
            METRICS[name]
        self.options()
        if not 0 < self.level < 1:
            raise ValueError(f"--level must be between 0 and 1, got {self.level:g}; 0.95 is usual")
        if self.bootstrap == 0:
            about = {name: value for name, value in changed(self).items() if name in ("level", "resample_seed")}
            unused("is about intervals, and --bootstrap 0 asks for none", **about)
        return {
            "metrics": names or None,
            "num_bins": self.bins,
            "bandwidth": self.bandwidth or None,
            "threshold": self.threshold,
            "num_bootstrap": self.bootstrap,
            "level": self.level,
            # None, not a generator of seed 0: the same resamples as `calattn.evaluate` draws unless told otherwise
            "generator": torch.Generator().manual_seed(self.resample_seed) if self.resample_seed else None,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPart:
    """Which predictions of a run folder."""

    split: Annotated[list[str] | None, _read("--split", text="Of a run folder: test (default), validation, …")] = None
    checkpoint: Annotated[
        str, _read("--checkpoint", text=f"Of a run folder: {', '.join(RULES)}.", complete=RULE_NAMES)
    ] = "last"

    def splits(self) -> list[str]:
        return [name for text in self.split or ("test",) for name in listed(text) or ()]

    def check_of_runs(self, are_runs: Iterable[bool]) -> None:
        """Of files alone there is nothing to choose."""
        if not any(are_runs):
            unused("chooses among the predictions of a run folder, and none was named", **changed(self))

    def check_one_split(self, command: str) -> None:
        if len(self.splits()) > 1:
            raise ValueError(f"--split names several splits; {command} takes one at a time")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling:
    """Whether results are shown after temperature scaling, and what it is fitted on."""

    ts: Annotated[
        bool,
        _scale("--ts", text="Scale by the T of lowest NLL on a run folder's validation predictions or --validation."),
    ] = False
    validation: Annotated[
        list[Path] | None, _scale("--validation", text="Fit --ts on this file; one for each path.")
    ] = None

    @property
    def files(self) -> list[Path]:
        return self.validation or []

    def wanted(self) -> bool:
        if self.files and not self.ts:
            raise ValueError("--validation is what temperature scaling is fitted on; add --ts")
        return self.ts


_run = functools.partial(option, RUN)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewRun:
    """The folder of a run that is trained, and what is changed in its spec."""

    out: Annotated[
        Path | None, _run("--out", text="The run's folder; default: by the spec, under runs/ (teach: RUN-taught).")
    ] = None
    overrides: Annotated[
        list[str] | None,
        _run(
            "--set",
            metavar="KEY=VALUE",
            text="Change any key of the spec, such as optimizer.lr=0.001; may be repeated. train --dry-run shows all keys.",
        ),
    ] = None
    size: Annotated[
        int | None, _run("--size", text="Side in pixels of the images the network sees: 32, 224, … Sets data.size.")
    ] = None
    overwrite: Annotated[bool, _run("--overwrite", text="Remove the run that the folder holds and start again.")] = (
        False
    )

    @property
    def changes(self) -> list[str]:
        return self.overrides or []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a command runs. The fields are those of `Runtime`."""

    accelerator: Annotated[
        str, _where("--accelerator", text="auto, cpu, cuda or mps; auto takes a GPU if there is one.")
    ] = "auto"
    threads: Annotated[int | None, _where("--threads", text="CPU threads of each process.", least=1)] = None
    data_root: DataRoot = None

    def runtime(self) -> Runtime:
        with starting():  # importing torch takes seconds
            from calattn.runs.runtime import Runtime

        return Runtime(**{name: value for name, value in dataclasses.asdict(self).items() if value is not None})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices(Machine):
    """Several devices of one machine."""

    devices: Annotated[
        str, _where("--devices", text="How many (4), which (0,2), or auto for all; each is a process of its own.")
    ] = "1"
    workers: Annotated[
        int | None, _where("--workers", text="Processes that read images when they do not all fit in memory.", least=0)
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster(Devices):
    """Several machines, and what long work needs."""

    nodes: Annotated[int, _where("--nodes", text="How many machines; start them with torchrun.", least=1)] = 1
    strategy: Annotated[
        str, _where("--strategy", text="How devices share the work: auto, ddp, fsdp (large networks).")
    ] = "auto"
    save_seconds: Annotated[
        float, _where("--save-seconds", text="Time between checkpoints: what a power cut may cost.", least=0)
    ] = 60.0
    track: Annotated[
        list[str] | None,
        _where("--track", text="Log to tensorboard, csv, wandb or mlflow too, in the run folder; may be repeated."),
    ] = None
    until_epoch: Annotated[
        int | None,
        option(
            RUN,
            "--until-epoch",
            text="Stop after this epoch; without it, the same command resumes from there.",
            least=1,
        ),
    ] = None


class EngineName(enum.StrEnum):
    local = "local"
    ray = "ray"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """Who runs the parts of a large work: this machine, or a cluster."""

    engine: Annotated[
        EngineName,
        _where("--engine", text="local: processes of this machine; ray: a Ray cluster (pip install 'calattn[ray]')."),
    ] = EngineName.local
    address: Annotated[
        str | None, _where("--address", text="Of the Ray cluster: auto, or HOST:PORT. Empty: one made of this machine.")
    ] = None

    @property
    def is_ray(self) -> bool:
        if self.engine is not EngineName.ray:
            unused("is of a Ray cluster; add --engine ray, or", address=self.address)
        return self.engine is EngineName.ray


MACHINE, DEVICES, CLUSTER, NEW_RUN, ENGINE = Machine(), Devices(), Cluster(), NewRun(), EngineFlags()


def listed(text: str | None) -> list[str] | None:
    """Names from a comma-separated text.

    >>> listed("ece, nll")
    ['ece', 'nll']
    """
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def unused(why: str, **given: object) -> None:
    """Refuses the first flag that was given and would do nothing, which is somebody's misunderstanding.

    >>> unused("is about pages", title=None, html="p.html")
    Traceback (most recent call last):
    ValueError: --html is about pages; leave --html out
    """
    for name, value in given.items():
        if value is not None and value is not False:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} {why}; leave {flag} out")


def check_rule(name: str) -> None:
    if name not in RULES:
        raise ValueError(f"--checkpoint must be one of {', '.join(RULES)}, got {name!r}")


def changed(group: Any) -> dict[str, Any]:
    """The flags of a group that were given, or that at least are not as they would be without."""
    values = {field.name: (getattr(group, field.name), field.default) for field in dataclasses.fields(group)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--ignore-label must be whole numbers, got {text!r}; --ignore leaves out a field") from None


def flat(function: Callable[..., None]) -> Callable[..., None]:
    """The command with each dataclass parameter replaced by that dataclass's own fields, which Typer understands."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if dataclasses.is_dataclass(kind):
            groups[parameter.name] = kind
            parameters += _fields_of(kind)
        else:
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def command(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        function(**given)

    del command.__wrapped__  # else the first signature would be found through it
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _fields_of(group: Any) -> Sequence[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    only = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(field.name, only, default=field.default, annotation=hints[field.name])
        for field in dataclasses.fields(group)
    ]
