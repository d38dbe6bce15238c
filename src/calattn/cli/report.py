"""`calattn report`: a folder of runs as a leaderboard page that links to each run's own."""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calattn.cli import options
from calattn.cli.console import note, print_json, results_to
from calattn.cli.errors import FAILED, examples

if TYPE_CHECKING:
    from calattn import Evaluation
    from calattn.cli.subjects import Subject

_FACTS = {
    "data": ("data", "name"),
    "size": ("data", "size"),
    "backbone": ("model", "backbone"),
    "head": ("model", "head"),
    "loss": ("loss", "name"),
    "epochs": ("train", "epochs"),
    "seed": ("seed",),
}
_FIRST = ("accuracy", "nll", "nll_ts", "ece", "ece_ts", "brier")
_SEEDS = "; rows that differ in their seed alone are trainings of one method: calattn compare --over-seeds joins them"
_SCALED = {"ece_ts": ("ece", "ECE + TS"), "nll_ts": ("nll", "NLL + TS")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the leaderboard: measured, with a page, or the reason why not."""

    title: str
    facts: dict[str, Any]
    page: str | None = None
    evaluation: Evaluation | None = None
    scaled: Evaluation | None = None
    temperature: float | None = None
    reason: str | None = None
    damaged: bool = False
    labels: str | None = None
    """A hash of all labels in their order."""
    data: str | None = None
    """What the predictions were made of, where that is known."""


@options.flat
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Run folders, folders of runs (searched), or files of predictions."),
    ],
    choice: options.Choice,
    measure: options.Measure,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for index.html and pages/.", rich_help_panel=options.OUTPUT)
    ] = Path("report"),
    title: Annotated[
        str | None, typer.Option("--title", help="Heading of the leaderboard.", rich_help_panel=options.OUTPUT)
    ] = None,
    reader: options.Reader = options.READER,
    data_root: options.DataRoot = None,
    json: options.Json = False,
) -> None:
    """A page for every run, and a leaderboard page that sorts, filters and links them.

    Runs are judged on one split ([bold]--split[/bold], test) by one checkpoint ([bold]--checkpoint[/bold], last), as they are
    and after temperature scaling fitted on their validation split. A run without predictions is listed with the reason.
    """
    from calattn.cli import subjects
    from calattn.report.page.writing import leaderboard_html, write_page

    measure.arguments()  # finds an unknown metric before anything is read
    if len(choice.splits()) > 1:
        raise ValueError("--split names several splits; report takes one at a time")
    _check_folder(out)
    places = list(_places(paths))
    titles = subjects.titles(places)
    names = _file_names(titles)
    rows = []
    for number, (place, shown) in enumerate(zip(places, titles, strict=True), start=1):
        note(f"[{number}/{len(places)}] {shown}")
        page = out / "pages" / f"{names[shown]}.html"
        rows.append(_row(place, shown, page, reader=reader, choice=choice, measure=measure, data_root=data_root))
    document = leaderboard_document(
        rows, title=title or "Calibration leaderboard", split=choice.splits()[0], checkpoint=choice.checkpoint
    )
    write_page(leaderboard_html(document), out / "index.html")
    for doubt in document["warnings"]:
        warnings.warn(doubt, stacklevel=1)
    if json:
        said = {key: document[key] for key in ("warnings", "rows")}
        print_json({"schema": 1, "command": "report", "index": str(out / "index.html"), **said})
    else:
        results_to().print(str(out / "index.html"), markup=False, soft_wrap=True)
    damaged = [row.title for row in rows if row.damaged]
    if damaged or not any(row.evaluation is not None for row in rows):
        note(f"not measured: {', '.join(damaged)}" if damaged else "nothing was measured")
        raise typer.Exit(FAILED)


report.epilog = examples(  # type: ignore[attr-defined]
    "calattn report runs --out report",
    "calattn report runs/a runs/b predictions.npz --checkpoint best-nll",
)


def _places(paths: Sequence[Path]) -> Iterator[Path]:
    """Run folders and files that the paths name or hold, each once, in the order of their names."""
    from calattn.files.predictions import MANIFEST
    from calattn.readers import PredictionFileMissing

    seen = set()
    for path in paths:
        if not path.exists():
            raise PredictionFileMissing(f"{path} does not exist")
        if path.is_file() or _judged(path) or (path / MANIFEST).is_file():
            found = [path]
        else:
            found = [folder for folder in _folders(path, set()) if _judged(folder)]
            if not found:
                raise ValueError(
                    f"{path} holds no run folder (one with spec.yaml or predictions/); name one, or a file"
                )
        for each in found:
            if each.resolve() not in seen:
                seen.add(each.resolve())
                yield each


def _folders(path: Path, seen: set[Path]) -> Iterator[Path]:
    """The folder and those below it, links followed, each once."""
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    yield path
    for below in sorted(path.iterdir()):
        if below.is_dir() and below.name not in ("checkpoints", "predictions", "tensorboard"):
            yield from _folders(below, seen)


def _check_folder(out: Path) -> None:
    """Refuses to replace a page that is not ours, or to write among a run's files, or where nothing can be written."""
    from calattn.files.atomic import check_writable
    from calattn.runs.folder import SPEC

    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a folder")
    if (out / SPEC).exists():
        raise ValueError(f"--out {out} is a run folder; name another")
    index = out / "index.html"
    if index.exists() and 'id="document"' not in index.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"--out {out} has an index.html that calattn did not write; name another folder")
    check_writable(index)


def _judged(folder: Path) -> bool:
    from calattn.cli import subjects

    return subjects.is_run(folder) or subjects.is_calibrated(folder)


def _row(
    place: Path,
    title: str,
    page: Path,
    *,
    reader: options.Reader,
    choice: options.Choice,
    measure: options.Measure,
    data_root: Path | None,
) -> Row:
    import calattn
    from calattn.cli import pages, subjects
    from calattn.cli.errors import words_of
    from calattn.cli.evaluate import working
    from calattn.comparison import labels_of
    from calattn.readers import PredictionFileMissing

    facts = _facts(place)
    try:
        subject = dataclasses.replace(subjects.find([place], reader=reader, choice=choice)[0], title=title)
        source = subject.source()
        with working(f"evaluating {title}", source):
            evaluation = calattn.evaluate(source, **measure.arguments())
        labels = labels_of(source).digest[:16]
    except ValueError as error:
        reason = words_of(error)
        note(f"{title} has no page: {reason}")
        return Row(title=title, facts=facts, reason=reason, damaged=not isinstance(error, PredictionFileMissing))
    scaled, temperature = _scaled(subject, measure)
    pages.write(page, [subject], [source], [evaluation], title=title, home="../index.html", data_root=data_root)
    return Row(
        title=title,
        facts={"samples": evaluation.num_samples} | facts,
        labels=labels,
        data=subject.data(),
        page=f"pages/{page.name}",
        evaluation=evaluation,
        scaled=scaled,
        temperature=temperature,
    )


def _scaled(subject: Subject, measure: options.Measure) -> tuple[Evaluation | None, float | None]:
    """After temperature scaling by NLL on the validation split, where there is one."""
    import calattn
    from calattn.posthoc import FitWarning

    if subject.run is None or subject.split == "validation":
        return None, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            better = subject.scaled(subject.validation(), "nll")
    except ValueError:  # no validation predictions, or a label that they give probability 0
        return None, None
    if better.calibrator is None or not better.calibrator.converged_:
        return None, None
    arguments = measure.arguments() | {"metrics": [metric for metric, _ in _SCALED.values()]}
    return calattn.evaluate(better.source(), **arguments), better.temperature


def _facts(place: Path) -> dict[str, Any]:
    """What the run's spec says that runs differ in."""
    from calattn.runs.facts import RunFacts, at

    run = RunFacts(place, say=note)
    spec = run.spec()
    found = {name: at(spec, *keys) for name, keys in _FACTS.items()}
    if (partly := run.unfinished) is not None:
        found["epochs"] = partly.removesuffix(" epochs")
    return {name: _plain_fact(value) for name, value in found.items() if value is not None}


def _plain_fact(value: Any) -> Any:
    """What JSON can hold, whatever somebody wrote into a spec."""
    from calattn.report.page.document import finite

    if isinstance(value, str | bool | int):
        return value
    return finite(value) if isinstance(value, float) else str(value)


def leaderboard_document(rows: Sequence[Row], *, title: str, split: str, checkpoint: str) -> dict[str, Any]:
    """What the leaderboard page shows (schema 1), and what `--json` says."""
    from calattn.report.page.document import version

    return {
        "schema": 1,
        "version": version(),
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "title": title,
        "note": f"runs: {split} predictions of the checkpoint “{checkpoint}”; TS: a temperature fitted by NLL on validation"
        + _SEEDS * _differ_in_seed(rows),
        "warnings": _warnings(rows),
        "metrics": _metrics(rows),
        "rows": [
            {
                "title": row.title,
                "href": row.page,
                "values": _values(row),
                "facts": row.facts | ({} if row.temperature is None else {"T": round(row.temperature, 3)}),
                "group": group,
                "note": row.reason,
            }
            for row, group in zip(rows, _groups(rows), strict=True)
        ],
    }


def _warnings(rows: Sequence[Row]) -> list[str]:
    """Where runs on different data have the same labels: they look alike, and are not ranked together."""
    from calattn.comparison import data_warning

    alike: dict[str, list[tuple[str, str | None]]] = {}
    for row in rows:
        if row.labels is not None:
            alike.setdefault(row.labels, []).append((row.title, row.data))
    return [doubt for named in alike.values() if (doubt := data_warning(named, ranked=True)) is not None]


def _groups(rows: Sequence[Row]) -> list[str | None]:
    """The same text for predictions of the same samples, which alone can be ranked: of equal labels and of the same data.

    Files do not say what they are of: they count as the data of the runs with their labels, where all those name one.
    """
    known: dict[str | None, set[str]] = {}
    for row in rows:
        known.setdefault(row.labels, set()).update([row.data] if row.data is not None else [])
    found: list[str | None] = []
    for row in rows:
        others = known[row.labels]
        data = row.data or (next(iter(others)) if len(others) == 1 else "")
        found.append(None if row.labels is None else f"{row.labels} {data}".strip())
    return found


def _metrics(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The columns: the most asked for first, each after scaling beside what it is compared with."""
    from calattn.metrics import METRICS
    from calattn.report.page.document import printed

    measured = next((row.evaluation for row in rows if row.evaluation is not None), None)
    if measured is None:
        return []
    metrics: dict[str, dict[str, Any]] = {}
    for name in measured.rows:
        better = "low" if METRICS[name].better == "lower" else "high"
        metrics[name] = {"name": name, **printed(name, measured.options), "better": better}
        for scaled, (metric, heading) in _SCALED.items():
            if metric == name and any(row.scaled is not None for row in rows):
                metrics[scaled] = metrics[name] | {"name": scaled, "title": heading}
    first = [name for name in _FIRST if name in metrics]
    return [metrics[name] for name in dict.fromkeys([*first, *metrics])]


def _values(row: Row) -> dict[str, Any]:
    """A row's numbers with their intervals, by column."""
    from calattn.report.page.document import finite

    found = {} if row.evaluation is None else dict(row.evaluation.rows)
    if row.scaled is not None:
        found |= {name: row.scaled[metric] for name, (metric, _) in _SCALED.items()}
    return {
        name: {key: finite(getattr(each, key)) for key in ("value", "low", "high")} | _infinite(each.value)
        for name, each in found.items()
    }


def _differ_in_seed(rows: Sequence[Row]) -> bool:
    """Whether there are runs that differ in nothing that is shown but their seed."""
    methods = [
        {name: fact for name, fact in row.facts.items() if name != "seed"} for row in rows if "seed" in row.facts
    ]
    return any(method in methods[:place] for place, method in enumerate(methods))


def _infinite(value: float) -> dict[str, bool]:
    return {"infinite": True} if math.isinf(value) else {}


def _file_names(titles: Sequence[str]) -> dict[str, str]:
    """A file name for each title: plain characters only, told apart by a number where they would clash.

    >>> _file_names(["a b", "a/b"])
    {'a b': 'a-b', 'a/b': 'a-b-2'}
    """
    found: dict[str, str] = {}
    for title in titles:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", title).strip("-.") or "page"
        name, number = plain, 1
        while name.lower() in {other.lower() for other in found.values()}:
            number += 1
            name = f"{plain}-{number}"
        found[title] = name
    return found
