"""`calattn report`: a folder of runs as a leaderboard page that links to each run's own."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calattn.cli import options
from calattn.cli.console import note, print_json, results_to
from calattn.cli.errors import FAILED, examples, message_of, reraise_if_stopped

if TYPE_CHECKING:
    from calattn import Evaluation
    from calattn.cli.subjects import PredictionSet
    from calattn.report.page.leaderboard import Standing

_FACTS = {
    "data": ("data", "name"),
    "size": ("data", "size"),
    "backbone": ("model", "backbone"),
    "head": ("model", "head"),
    "loss": ("loss", "name"),
    "epochs": ("train", "epochs"),
    "seed": ("seed",),
}


@options.flat
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Run folders, folders of runs (searched), or files of predictions."),
    ],
    part: options.RunPart,
    measure: options.Measure,
    out: Path = options.flag(options.OUTPUT, "--out", default=Path("report"), text="Folder for index.html and pages/."),
    table: options.TableFile = None,
    title: str | None = options.flag(options.OUTPUT, "--title", text="Heading of the leaderboard."),
    reader: options.FileFlags = options.FILE_FLAGS,
    overwrite: options.Overwrite = False,
    data_root: options.DataRoot = None,
    json: options.Json = False,
) -> None:
    """A page for every run, and a leaderboard page that sorts, filters and links them.

    Runs are judged on one split ([bold]--split[/bold], test) by one checkpoint ([bold]--checkpoint[/bold], last), as they are
    and after temperature scaling fitted on their validation split. A run without predictions is listed with the reason.
    """
    from calattn.cli import subjects
    from calattn.cli.judgement import TABLES, check_output, write_table
    from calattn.report import leaderboard
    from calattn.report.page.leaderboard import leaderboard_document
    from calattn.report.page.writing import check_page, leaderboard_html, write_page

    measure.arguments()  # finds an unknown metric before anything is read
    part.check_one_split("report")
    _check_folder(out, overwrite=overwrite)
    check_output(table, TABLES, "--table")
    given = {path: name for name, path in map(subjects.named, paths)}
    places = list(_places(given))
    titles = subjects.titles(places, given=given)
    names = _file_names(titles)
    for name in names.values():
        check_page(out / "pages" / f"{name}.html", "--out:", overwrite=overwrite)
    part.check_of_runs(map(subjects.is_run, places))
    rows = []

    def find(place: Path) -> PredictionSet:
        return subjects.find([place], reader=reader, part=part if subjects.is_run(place) else options.RunPart())[0]

    for number, (place, shown) in enumerate(zip(places, titles, strict=True), start=1):
        note(f"[{number}/{len(places)}] {shown}")
        page = out / "pages" / f"{names[shown]}.html"
        rows.append(_row(place, shown, page, find=find, measure=measure, data_root=data_root))
    document = leaderboard_document(
        rows, title=title or "Calibration leaderboard", split=part.splits()[0], checkpoint=part.checkpoint
    )
    write_page(leaderboard_html(document), out / "index.html")
    evaluations = {row.title: row.evaluation for row in rows if row.evaluation is not None}
    if table is not None and evaluations:
        write_table(leaderboard(evaluations, bold_best=len({row["group"] for row in document["rows"]}) == 1), table)
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
    "calattn report runs --out report", "calattn report runs/a runs/b predictions.npz --checkpoint best-nll"
)


def _places(paths: Iterable[Path]) -> Iterator[Path]:
    """Run folders and files that the paths name or hold, each once, in the order of their names."""
    from calattn.files.missing import why_missing
    from calattn.files.predictions import MANIFEST, PredictionFileMissing

    seen = set()
    for path in paths:
        if not path.exists():
            raise PredictionFileMissing(why_missing(path))
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
    try:
        inside = sorted(path.iterdir())
    except OSError as error:
        note(f"not searched: {message_of(error)}")
        inside = []
    for below in inside:
        if below.is_dir() and below.name not in ("checkpoints", "predictions", "trackers"):
            yield from _folders(below, seen)


def _check_folder(out: Path, *, overwrite: bool) -> None:
    """Refuses to replace a page that is not ours, or to write among a run's files, or where nothing can be written."""
    from calattn.files.atomic import check_writable
    from calattn.report.page.writing import check_page
    from calattn.runs.folder import SPEC

    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a folder")
    if (out / SPEC).exists():
        raise ValueError(f"--out {out} is a run folder; name another")
    index = out / "index.html"
    check_page(index, "--out:", overwrite=overwrite)
    check_writable(index)


def _judged(folder: Path) -> bool:
    from calattn.cli import subjects

    return subjects.is_run(folder) or subjects.is_calibrated(folder)


def _row(
    place: Path,
    title: str,
    page: Path,
    *,
    find: Callable[[Path], PredictionSet],
    measure: options.Measure,
    data_root: Path | None,
) -> Standing:
    import calattn
    from calattn.cli import pages
    from calattn.cli.judgement import working
    from calattn.comparison import labels_of
    from calattn.readers import PredictionFileMissing
    from calattn.report.page.leaderboard import Standing

    facts: dict[str, Any] = {}
    try:
        facts = _facts(place)
        subject = dataclasses.replace(find(place), title=title)
        source = subject.source()
        with working(f"evaluating {title}", source):
            evaluation = calattn.evaluate(source, **measure.arguments())
        labels, data = labels_of(source).digest[:16], subject.data()
        scaled, temperature = _scaled(subject, measure)
        training = None
        with contextlib.suppress(ValueError):  # a spec that cannot be read
            training = None if subject.run is None else subject.training()
        judged = pages.Judged(subject=subject, source=source, evaluation=evaluation)
        pages.write(page, [judged], data_root=data_root, more={"title": title, "home": "../index.html"})
    except Exception as error:  # one bad run is one line, whatever is wrong with it
        reraise_if_stopped(error)
        reason = message_of(error)
        note(f"{title} has no page: {reason}")
        return Standing(title=title, facts=facts, reason=reason, damaged=not isinstance(error, PredictionFileMissing))
    return Standing(
        title=title,
        facts={"samples": evaluation.num_samples} | facts,
        training=training,
        labels=labels,
        data=data,
        page=f"pages/{page.name}",
        evaluation=evaluation,
        scaled=scaled,
        temperature=temperature,
    )


def _scaled(subject: PredictionSet, measure: options.Measure) -> tuple[Evaluation | None, float | None]:
    """After temperature scaling by NLL on the validation split, where there is one."""
    import calattn
    from calattn.posthoc import FitWarning
    from calattn.report.page.leaderboard import SCALED

    if subject.run is None or subject.split == "validation":
        return None, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            better = subject.scaled(subject.validation())
    except ValueError:  # no validation predictions, or a label that they give probability 0
        return None, None
    if better.calibrator is None or not better.calibrator.converged_:
        return None, None
    arguments = measure.arguments() | {"metrics": [metric for metric, _ in SCALED.values()]}
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
