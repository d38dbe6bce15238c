"""Flags that commands share: each group is a dataclass, and `flat` spreads its fields over a command."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

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


def flag(panel: str, *names: str, default: Any = None, **more: Any) -> Any:
    """A parameter of a command or a field of a group: its default, and its option."""
    return dataclasses.field(default=default, metadata={"option": option(panel, *names, **more)})


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


_read, _measure, _scale, _where = (functools.partial(flag, panel) for panel in (READING, MEASURING, SCALING, WHERE))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileFlags:
    """What the caller knows about the files; the arguments of `calattn.read_predictions`, spelt as flags."""

    kind: Literal["logits", "probs"] | None = _read(
        "--kind", text="What the values are, where their name does not show it."
    )
    columns: str | None = _read(
        "--columns", text="Their name, a pattern such as 'out_*', or one column per class: a,b,c."
    )
    labels: str | None = _read("--labels", text="Name of the labels, or an .npy file of them.")
    label_offset: int | None = _read("--label-offset", text="1 where classes are counted from 1.")
    class_names: str | None = _read("--class-names", text="Names in class order: cat,dog.")
    ignore: list[str] | None = _read("--ignore", text="Fields to leave alone: a,b.")
    ignore_label: list[str] | None = _read(
        "--ignore-label", text="Leave out rows with this label: -100, or several: -1,255."
    )
    floor: float = _read("--floor", default=0.0, text="Raise smaller probabilities to this (forests state zeros).")
    sum_tolerance: float | None = _read(
        "--sum-tolerance", text="How far rows of probabilities may sum from 1 (rounded files)."
    )
    delimiter: str | None = _read("--delimiter", text="Of text files; found in the first line: comma, ; tab or |.")
    header: str | None = _read("--header", text="Column names of a text file that has none: a,b.")
    features: bool = _read(
        "--features/--no-features",
        default=True,
        text="Read features where the file has them: calibrate has methods that use them.",
    )

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `read_predictions` and `stream_predictions`."""
        columns = listed(self.columns)
        labels: str | Path | None = self.labels
        if self.labels is not None and (self.labels.lower().endswith(".npy") or Path(self.labels).is_file()):
            labels = Path(self.labels)
        return {
            "kind": self.kind,
            "columns": columns[0] if columns and len(columns) == 1 else columns,
            "labels": labels,
            "label_offset": self.label_offset,
            "class_names": listed(self.class_names),
            "ignore": tuple(each(self.ignore)),
            "ignore_index": tuple(map(_whole, each(self.ignore_label))),
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

    metrics: list[str] | None = _measure(
        "--metrics",
        "-m",
        text="Some of calattn list metrics: ece,nll. Empty: all (tables of evaluate or of several methods: the main ones).",
        complete=names("calattn.metrics:METRICS"),
    )
    bins: int = _measure("--bins", default=15, text="Bins of the binned errors.")
    bandwidth: float = _measure("--bandwidth", default=0.05, text="Of smECE; 0: chosen from the data.")
    threshold: float = _measure("--threshold", default=0.9, text="What high confidence is.")
    level: float = _measure("--level", default=0.95, text="Of the intervals.")
    bootstrap: int | None = _measure(
        "--bootstrap", text="Resamples; 0: no intervals. Empty: 1,000, or 200 for large files."
    )
    resample_seed: int = _measure("--resample-seed", default=0, text="Draws the resamples.")

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

        names = each(self.metrics)
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

    split: list[str] | None = _read("--split", text="Of a run folder: test (default), validation, …")
    checkpoint: str = _read(
        "--checkpoint", default="last", text=f"Of a run folder: {', '.join(RULES)}.", complete=RULE_NAMES
    )

    def splits(self) -> list[str]:
        return each(self.split or ["test"])

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

    ts: bool = _scale(
        "--ts",
        default=False,
        text="Scale by the T of lowest NLL on a run folder's validation predictions or --validation.",
    )
    validation: list[Path] | None = _scale("--validation", text="Fit --ts on this file; one for each path.")

    @property
    def files(self) -> list[Path]:
        return self.validation or []

    def wanted(self) -> bool:
        if self.files and not self.ts:
            raise ValueError("--validation is what temperature scaling is fitted on; add --ts")
        return self.ts


_run = functools.partial(flag, RUN)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewRun:
    """The folder of a run that is trained, and what is changed in its spec."""

    out: Path | None = _run("--out", text="The run's folder; default: by the spec, under runs/ (teach: RUN-taught).")
    overrides: list[str] | None = _run(
        "--set",
        metavar="KEY=VALUE",
        text="Change any key of the spec, such as optimizer.lr=0.001; may be repeated. train --dry-run shows all keys.",
    )
    size: int | None = _run("--size", text="Side in pixels of the images the network sees: 32, 224, … Sets data.size.")
    overwrite: bool = _run("--overwrite", default=False, text="Remove the run that the folder holds and start again.")

    @property
    def changes(self) -> list[str]:
        return self.overrides or []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a command runs. The fields are those of `Runtime`."""

    accelerator: str = _where(
        "--accelerator", default="auto", text="auto, cpu, cuda or mps; auto takes a GPU if there is one."
    )
    threads: int | None = _where("--threads", text="CPU threads of each process.", least=1)
    data_root: DataRoot = None

    def runtime(self) -> Runtime:
        with starting():  # importing torch takes seconds
            from calattn.runs.runtime import Runtime

        return Runtime(**{name: value for name, value in dataclasses.asdict(self).items() if value is not None})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices(Machine):
    """Several devices of one machine."""

    devices: str = _where(
        "--devices", default="1", text="How many (4), which (0,2), or auto for all; each is a process of its own."
    )
    workers: int | None = _where(
        "--workers", text="Processes that read images when they do not all fit in memory.", least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster(Devices):
    """Several machines, and what long work needs."""

    nodes: int = _where("--nodes", default=1, text="How many machines; start them with torchrun.", least=1)
    strategy: str = _where(
        "--strategy", default="auto", text="How devices share the work: auto, ddp, fsdp (large networks)."
    )
    save_seconds: float = _where(
        "--save-seconds", default=60.0, text="Time between checkpoints: what a power cut may cost.", least=0
    )
    track: list[str] | None = _where(
        "--track", text="Log to tensorboard, csv, wandb or mlflow too, in the run folder; may be repeated."
    )
    until_epoch: int | None = _run(
        "--until-epoch", text="Stop after this epoch; without it, the same command resumes from there.", least=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """Who runs the parts of a large work: this machine, or a cluster."""

    engine: Literal["local", "ray"] = _where(
        "--engine",
        default="local",
        text="local: processes of this machine; ray: a Ray cluster (pip install 'calattn[ray]').",
    )
    address: str | None = _where(
        "--address", text="Of the Ray cluster: auto, or HOST:PORT. Empty: one made of this machine."
    )

    @property
    def is_ray(self) -> bool:
        if self.engine != "ray":
            unused("is of a Ray cluster; add --engine ray, or", address=self.address)
        return self.engine == "ray"


MACHINE, DEVICES, CLUSTER, NEW_RUN, ENGINE = Machine(), Devices(), Cluster(), NewRun(), EngineFlags()


def listed(text: str | None) -> list[str] | None:
    """Names from a comma-separated text.

    >>> listed("ece, nll")
    ['ece', 'nll']
    """
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def each(texts: Sequence[str] | None) -> list[str]:
    """The names of a flag that may be repeated, and take several with commas.

    >>> each(["ece, nll", "brier"])
    ['ece', 'nll', 'brier']
    """
    return listed(",".join(texts or ())) or []


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
    """The command as Typer understands it: with a dataclass's own fields in its place, and the option of each `flag`."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if dataclasses.is_dataclass(kind):
            groups[parameter.name] = kind
            parameters += _fields_of(kind)
        else:
            parameters.append(_flag_of(parameter.name, kind, parameter.default))

    @functools.wraps(function)
    def command(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        function(**given)

    del command.__wrapped__  # else the first signature would be found through it
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _fields_of(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        yield _flag_of(field.name, hints[field.name], field)


def _flag_of(name: str, kind: Any, default: Any) -> inspect.Parameter:
    """A parameter as Typer understands it; `default` may be a `flag`."""
    if isinstance(default, dataclasses.Field):
        if "option" in default.metadata:
            kind = Annotated[kind, default.metadata["option"]]
        default = default.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
