"""`calattn compare`: is B better than A, or is it chance?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calattn.cli import options
from calattn.cli.console import note
from calattn.cli.errors import examples
from calattn.cli.judgement import (
    Judgement,
    check_outputs,
    compared,
    doubts,
    evaluated,
    pictures_for_page,
    plain,
    remark_of,
    working,
)

if TYPE_CHECKING:
    from calattn import Difference, Predictions
    from calattn.cli.subjects import Blocks, PredictionSet
    from calattn.comparison import Method, SeedsDifference

    Comparisons = Mapping[str, Mapping[str, Difference]]


@options.flat
def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="A B", help="Files, predictions folders or run folders; the first is the baseline."),
    ],
    part: options.RunPart,
    measure: options.Measure,
    scaling: options.Scaling,
    over_seeds: bool = options.flag(
        options.MEASURING,
        "--over-seeds",
        default=False,
        text="Runs whose specs differ in their seed alone are one method: compare methods, seed by seed.",
    ),
    target: options.Target = None,
    cluster: options.ClusterColumn = None,
    reader: options.FileFlags = options.FILE_FLAGS,
    out: options.TableOut = None,
    html: options.Html = None,
    overwrite: options.Overwrite = False,
    data_root: options.DataRoot = None,
    json: options.Json = False,
) -> None:
    """The difference of every metric from the first path's, with a paired interval, and what is more than chance.

    Both sides are resampled together, so what they share cancels. The samples must be the same: labels are checked, and
    where both sides carry sample indices, rows are put in the same order first. Runs on different data are warned about.
    """
    from calattn.cli import subjects

    check_outputs([*paths, *scaling.files], out=out, html=html, overwrite=overwrite)
    pictures_for_page(data_root, html)
    measure.arguments()  # finds an unknown metric before anything is read
    part.check_one_split("compare")
    found = subjects.find(paths, reader=reader, part=part)
    if len(found) < 2:
        raise ValueError("compare needs two or more paths: calattn compare A B")
    if scaling.wanted():
        found = subjects.scaled(found, scaling)
    if over_seeds and html is not None:
        raise ValueError("--html shows single runs; leave it out, or --over-seeds")
    doubted = doubts(found)
    comparisons: Comparisons
    if over_seeds:
        options.unused("is of single runs, and --over-seeds compares several", cluster=cluster)
        sides, comparisons, samples = _over_seeds(found, measure, target)
        remark = None
    else:
        sources, together = _sources(found, cluster)
        sides = {each.title: each.described() for each in found}
        comparisons = compared(sources, measure, target, together)
        samples, remark = subjects.count(sources[found[0].title]), remark_of(found)
    judgement = _judgement(sides, comparisons, samples=samples, level=measure.level, remark=remark, doubted=doubted)
    judgement.show(as_json=json)
    judgement.write(out)
    if html is not None:
        from calattn.cli import pages

        columns = {title: {"clusters": together} for title in sources}
        judged = pages.all_judged(found, sources, evaluated(sources, measure, target, columns), comparisons)
        pages.write(html, judged, data_root=data_root, more={"warnings": doubted, "remark": remark})


compare.epilog = examples(  # type: ignore[attr-defined]
    "calattn compare baseline.npz calattn.npz --html both.html",
    "calattn compare runs/baseline runs/calattn --ts --metrics nll,ece",
    "calattn compare a.npz b.npz --ts --validation a_val.npz --validation b_val.npz",
    "calattn compare runs/a runs/b runs/c --checkpoint best-nll --write table.md",
    "calattn compare old.csv new.csv --target fraud",
    "calattn compare runs/ce-seed* runs/calattn-seed* --over-seeds",
)


def _judgement(
    sides: dict[str, dict[str, Any]],
    comparisons: Comparisons,
    *,
    samples: int,
    level: float,
    remark: str | None,
    doubted: list[str],
) -> Judgement:
    """`sides` are described for JSON, the baseline first; `comparisons` are those of the others. Both by title."""
    from calattn.report.evaluations import described, difference_rows, difference_table, summary

    (baseline, first), *others = sides.items()
    # What all differences were measured with, the target's name included; None where nothing could be compared.
    measured = next((each.options for part in comparisons.values() for each in part.values()), None)
    summaries = [
        summary(part, a=plain(baseline), b=plain(title), options=measured) for title, part in comparisons.items()
    ]
    about: dict[str, Any] = {"baseline": baseline, "level": level, "options": measured, "samples": samples}
    return Judgement(
        table=difference_table(comparisons, **about),
        written=difference_rows(comparisons, **about),
        said=summaries,
        notes=[] if remark is None else [remark],
        warnings=doubted,
        document={
            "schema": 1,
            "command": "compare",
            "level": level,
            "target": None if measured is None else measured.target,
            "samples": samples,
            "remark": remark,
            "warnings": doubted,
            "baseline": first,
            "comparisons": [
                side
                | {"summary": said, "differences": {metric: described(each, measured) for metric, each in part.items()}}
                for (_, side), said, part in zip(others, summaries, comparisons.values(), strict=True)
            ],
        },
    )


def _over_seeds(
    found: list[PredictionSet], measure: options.Measure, target: str | None
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, SeedsDifference]], int]:
    """Each method against the first, over the seeds that both have: the methods described, and the number of samples."""
    from calattn.cli import subjects
    from calattn.comparison import common_seeds, compare_over_seeds, methods_of

    by_name = {each.name: each for each in found}
    scaled = " + TS" * any(each.calibrator is not None for each in found)
    first, *others = methods_of({name: each.training() for name, each in by_name.items()}, after=scaled)
    samples, images = 0, found[0].images()

    def pairs(a: Method, b: Method) -> Iterator[tuple[Predictions | Blocks, Predictions | Blocks]]:
        nonlocal samples
        for seed in common_seeds(a, b):
            pair = [by_name[method.runs[seed]] for method in (a, b)]
            one, other = _sources(pair)[0].values()
            with working(f"comparing {pair[1].title} with {pair[0].title}", other):
                yield one, other
            samples = subjects.count(one)

    comparisons = {
        other.title: compare_over_seeds(pairs(first, other), target=target, clusters=images, **measure.compared(target))
        for other in others
    }
    sides = {
        method.title: {
            "title": method.title,
            "runs": [{"seed": seed} | by_name[name].described() for seed, name in method.runs.items()],
        }
        for method in (first, *others)
    }
    return sides, comparisons, samples


def _sources(found: Sequence[PredictionSet], cluster: str | None = None) -> tuple[dict[str, Predictions | Blocks], Any]:
    """The predictions of all by title, in the order of the first, and the clusters of its rows."""
    from calattn.comparison import same_samples

    first, *others = found
    source, columns = first.with_columns(clusters=cluster)
    given = {plain(first.title): source} | {plain(each.title): each.source() for each in others}
    aligned = same_samples(given)
    for name, each in aligned.items():
        if each is not given[name]:
            note(f"{name} was put in the order of {next(iter(given))} by sample index")
    sources = dict(zip((each.title for each in found), aligned.values(), strict=True))
    return sources, columns.get("clusters")  # type: ignore[return-value]
