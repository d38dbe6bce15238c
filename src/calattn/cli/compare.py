"""`calattn compare`: is B better than A, or is it chance?"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calattn.cli import options
from calattn.cli.console import json_text, note, print_json, print_table, results_to
from calattn.cli.errors import examples
from calattn.cli.evaluate import OUTPUTS, check_not_input, check_output, working, write_text

if TYPE_CHECKING:
    from calattn import Difference, Predictions
    from calattn.cli.over_seeds import Group
    from calattn.cli.subjects import Blocks, Subject
    from calattn.metrics.over_seeds import SeedsDifference
    from calattn.metrics.state import Options

    Comparisons = Mapping[str, Mapping[str, Difference]]


_CALIBRATE_FIRST = (
    "calibrate each file first, and compare the folders without --ts: "
    "calattn calibrate FILE --validation FILE --out FOLDER"
)
_OF_SEEDS = ("std_a", "std_b", "num_seeds")


@options.flat
def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="A B...", help="Files, predictions folders or run folders; the first is the baseline."),
    ],
    choice: options.Choice,
    measure: options.Measure,
    ts: Annotated[
        bool,
        typer.Option("--ts", help="After temperature scaling each on its own validation predictions (run folders)."),
    ] = False,
    objective: Annotated[
        options.Objective, typer.Option("--objective", help="What the temperature minimises on validation.")
    ] = options.Objective.ece,
    over_seeds: Annotated[
        bool,
        typer.Option(
            "--over-seeds",
            help="Runs whose specs differ in their seed alone are one method: compare methods, seed by seed.",
        ),
    ] = False,
    target: options.Target = None,
    reader: options.Reader = options.READER,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the table: .json, .csv, .md or .tex.", rich_help_panel=options.OUTPUT),
    ] = None,
    html: options.Html = None,
    data_root: options.DataRoot = None,
    json: options.Json = False,
) -> None:
    """The difference of every metric from the first path's, with a paired interval, in numbers and in words.

    Both sides are resampled together, so what they share cancels. The samples must be the same: labels are checked, and
    where both sides carry sample indices, rows are put in the same order first. Runs on different data are warned about.
    """
    from calattn.cli import subjects

    check_output(out, OUTPUTS, "--out")
    check_output(html, (".html", ".htm"), "--html")
    check_not_input(paths, out=out, html=html)
    measure.arguments()  # finds an unknown metric before anything is read
    if len(choice.splits()) > 1:
        raise ValueError("--split names several splits; compare takes one at a time")
    found = subjects.find(paths, reader=reader, choice=choice)
    if len(found) < 2:
        raise ValueError("compare needs two or more paths: calattn compare A B")
    if ts:
        found = [each.scaled(each.validation(otherwise=_CALIBRATE_FIRST), objective.value) for each in found]
    if over_seeds:
        if html is not None:
            raise ValueError("--html shows single runs; leave it out, or --over-seeds")
        groups, samples, means = _over_seeds(found, measure, target)
        _show(means, groups, measure=measure, samples=samples, as_json=json)
        _write(out, means, groups, measure=measure, samples=samples)
        return
    sources = [each.source() for each in found]
    samples, comparisons = _compared(found, sources, measure, target)
    _show(comparisons, found, measure=measure, samples=samples, as_json=json)
    if (remark := _remark(found)) is not None:
        note(remark)
    _write(out, comparisons, found, measure=measure, samples=samples)
    if html is not None:
        _page(html, found, sources, comparisons, measure=measure, target=target, data_root=data_root)


compare.epilog = examples(  # type: ignore[attr-defined]
    "calattn compare baseline.npz calattn.npz --html both.html",
    "calattn compare runs/baseline runs/calattn --ts --metrics nll,ece",
    "calattn compare runs/a runs/b runs/c --checkpoint best-nll --out table.md",
    "calattn compare old.csv new.csv --target fraud",
    "calattn compare runs/ce-seed* runs/calattn-seed* --over-seeds",
)


def _page(
    html: Path,
    found: list[Subject],
    sources: list[Predictions | Blocks],
    comparisons: dict[str, dict[str, Difference]],
    *,
    measure: options.Measure,
    target: str | None,
    data_root: Path | None,
) -> None:
    import calattn
    from calattn.cli import pages

    evaluations = []
    for each, source in zip(found, sources, strict=True):
        with working(f"evaluating {_plain(each)}", source):
            evaluations.append(calattn.evaluate(source, target=target, **measure.arguments()))
    numbered = dict(enumerate(comparisons.values(), start=1))
    doubts = _warnings(found)
    pages.write(html, found, sources, evaluations, comparisons=numbered, warnings=doubts, data_root=data_root)


def _over_seeds(
    found: list[Subject], measure: options.Measure, target: str | None
) -> tuple[list[Group], int, dict[str, dict[str, SeedsDifference]]]:
    """The methods, how many samples there are, and each method's differences from the first."""
    from calattn.cli import over_seeds
    from calattn.metrics.over_seeds import over_seeds as joined

    groups = over_seeds.group(found)
    comparisons = {}
    for other in groups[1:]:
        parts = []
        for pair in over_seeds.pairs(groups[0], other):
            samples, part = _compared(list(pair), [each.source() for each in pair], measure, target)
            parts.append(next(iter(part.values())))
        shared = _in_all(parts, f"{other.title} against {groups[0].title}, not in every seed")
        comparisons[other.title] = {metric: joined([part[metric] for part in parts]) for metric in shared}
    shared = _in_all(list(comparisons.values()), "not in every comparison")
    return groups, samples, {title: {name: part[name] for name in shared} for title, part in comparisons.items()}


def _in_all(parts: Sequence[Mapping[str, Difference]], where: str) -> list[str]:
    """The metrics that all have; those that some lack, because they could not be resampled, are named."""
    for name in dict.fromkeys(itertools.chain.from_iterable(parts)):
        if not all(name in part for part in parts):
            note(f"{name} is left out: {where}")
    return [name for name in parts[0] if all(name in part for part in parts)]


def _compared(
    found: list[Subject], sources: list[Predictions | Blocks], measure: options.Measure, target: str | None
) -> tuple[int, dict[str, dict[str, Difference]]]:
    """How many samples there are, and each subject's differences from the first. `sources` are put in the same order."""
    import calattn

    names = [_plain(each) for each in found]
    large = not all(isinstance(source, calattn.Predictions) for source in sources)
    # Of files that do not fit into memory the labels are compared, and nothing is put in another order.
    labels = [labels_of(source) for source in sources] if large else []
    comparisons = {}
    for place in range(1, len(found)):
        a, b = sources[0], sources[place]
        if large:
            _same_labels(labels[0], labels[place], names[0], names[place])
        else:
            b = sources[place] = same_samples(a, b, name_a=names[0], name_b=names[place])  # type: ignore[arg-type]
        with working(f"comparing {names[place]} with {names[0]}", b):
            comparisons[found[place].title] = calattn.compare(a, b, target=target, **measure.arguments())
    return (labels[0][0] if large else len(sources[0])), comparisons  # type: ignore[arg-type]


def labels_of(source: Predictions | Blocks) -> tuple[int, int, str]:
    """How many samples and classes there are, and a hash of all labels in their order."""
    import hashlib

    import calattn

    count, classes, digest = 0, 0, hashlib.sha256()
    for part in [source] if isinstance(source, calattn.Predictions) else source:
        count, classes = count + len(part), part.num_classes
        digest.update(part.labels.cpu().contiguous().numpy().tobytes())
    return count, classes, digest.hexdigest()


def _same_labels(a: tuple[int, int, str], b: tuple[int, int, str], name_a: str, name_b: str) -> None:
    for place, (what, remedy) in enumerate((("samples", "the same samples"), ("classes", "the same task"))):
        if a[place] != b[place]:
            raise ValueError(
                f"{name_a} has {a[place]} {what} and {name_b} has {b[place]}; compare predictions of {remedy}"
            )
    if a[2] != b[2]:
        raise ValueError(
            f"the labels of {name_a} and {name_b} differ; compare predictions of the same samples in the same order"
        )


def same_samples(a: Predictions, b: Predictions, *, name_a: str, name_b: str) -> Predictions:
    """`b` in the order of `a`, or an error saying what shows that they are not the same samples."""
    import torch

    if len(a) != len(b):
        raise ValueError(
            f"{name_a} has {len(a)} samples and {name_b} has {len(b)}; compare predictions of the same samples"
        )
    if a.num_classes != b.num_classes:
        raise ValueError(
            f"{name_a} has {a.num_classes} classes and {name_b} has {b.num_classes}; compare the same task"
        )
    if a.indices is not None and b.indices is not None and not torch.equal(a.indices, b.indices):
        order_a, order_b = a.indices.argsort(stable=True), b.indices.argsort(stable=True)
        if not torch.equal(a.indices[order_a], b.indices[order_b]):
            missing = set(a.indices.tolist()) - set(b.indices.tolist())
            which = f"sample {min(missing)} of {name_a} is not in {name_b}" if missing else "indices repeat differently"
            raise ValueError(f"the sample indices differ: {which}; compare predictions of the same split")
        note(f"{name_b} was put in the order of {name_a} by sample index")
        b = b.select(order_b[order_a.argsort()])
    wrong = a.labels != b.labels
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise ValueError(
            f"{int(wrong.sum())} of {len(a)} labels differ, the first in row {row}: {int(a.labels[row])} in {name_a}, "
            f"{int(b.labels[row])} in {name_b}; compare predictions of the same samples in the same order"
        )
    return b


def _show(
    comparisons: Comparisons,
    found: Sequence[Subject | Group],
    *,
    measure: options.Measure,
    samples: int,
    as_json: bool,
) -> None:
    for doubt in _warnings(found):
        warnings.warn(doubt, stacklevel=1)
    if as_json:
        print_json(document(comparisons, found, measure=measure, samples=samples))
        return
    from calattn.cli import over_seeds
    from calattn.report import difference_table, sentence
    from calattn.report.tables import summary

    console, options_of = results_to(), _options(comparisons)
    shown = over_seeds.table if isinstance(found[0], over_seeds.Group) else difference_table
    table = shown(comparisons, baseline=found[0].title, level=measure.level, options=options_of)
    print_table(table, lead=2, group=3)
    for each, differences in zip(found[1:], comparisons.values(), strict=True):
        console.print(f"\n{_plain(each)} against {_plain(found[0])}, {samples:,} samples:", markup=False)
        for difference in differences.values():
            console.print(f"  {sentence(difference, options_of)}", markup=False)
        console.print(
            summary(differences, a=_plain(found[0]), b=_plain(each), options=options_of), markup=False, soft_wrap=True
        )


def document(
    comparisons: Comparisons, found: Sequence[Subject | Group], *, measure: options.Measure, samples: int
) -> dict[str, Any]:
    """The stable JSON form (schema 1): fractions in full precision."""
    from calattn.report import sentence
    from calattn.report.tables import summary

    names = ("a", "b", "difference", "low", "high", "p_value", "significant", *_OF_SEEDS)
    return {
        "schema": 1,
        "command": "compare",
        "level": measure.level,
        "target": None if (of := _options(comparisons)) is None else of.target,
        "samples": samples,
        "remark": _remark(found),
        "warnings": _warnings(found),
        "baseline": found[0].described(),
        "comparisons": [
            each.described()
            | {
                "summary": summary(differences, a=_plain(found[0]), b=_plain(each), options=_options(comparisons)),
                "differences": {
                    metric: {name: getattr(difference, name) for name in names if hasattr(difference, name)}
                    | {"sentence": sentence(difference, _options(comparisons))}
                    for metric, difference in differences.items()
                },
            }
            for each, differences in zip(found[1:], comparisons.values(), strict=True)
        ],
    }


def _write(
    out: Path | None,
    comparisons: Comparisons,
    found: Sequence[Subject | Group],
    *,
    measure: options.Measure,
    samples: int,
) -> None:
    from calattn.report import difference_latex, difference_markdown, difference_rows, rows_to_csv

    if out is None:
        return
    baseline = _plain(found[0])
    plain = {_plain(each): part for each, part in zip(found[1:], comparisons.values(), strict=True)}
    if out.suffix == ".json":
        write_text(out, json_text(document(comparisons, found, measure=measure, samples=samples)))
    elif out.suffix == ".csv":
        rows = difference_rows(plain, baseline=baseline)
        each = itertools.chain.from_iterable(part.values() for part in plain.values())
        more = [{name: getattr(one, name) for name in _OF_SEEDS if hasattr(one, name)} for one in each]
        write_text(out, rows_to_csv([row | extra for row, extra in zip(rows, more, strict=True)]))
    else:
        given: dict[str, Any] = {"baseline": baseline, "level": measure.level, "options": _options(comparisons)}
        remarks = [*([remark] if (remark := _remark(found)) else []), *_warnings(found)]
        if out.suffix == ".tex":
            write_text(out, difference_latex(plain, **given, notes=remarks))
            return
        words = [f"- {each}" for each in (*itertools.chain.from_iterable(_sentences(plain)), *remarks)]
        write_text(out, difference_markdown(plain, **given) + "\n" + "\n".join(words) + "\n")


def _options(comparisons: Comparisons) -> Options | None:
    """What all differences were measured with, the target's name included; None where nothing could be compared."""
    return next((each.options for part in comparisons.values() for each in part.values()), None)


def _sentences(comparisons: Comparisons) -> list[list[str]]:
    from calattn.report import sentence

    return [
        [f"{title}: {sentence(each, each.options)}" for each in part.values()] for title, part in comparisons.items()
    ]


def _remark(found: Sequence[Subject | Group]) -> str | None:
    from calattn.cli import over_seeds

    return over_seeds.remark([each for each in found if not isinstance(each, over_seeds.Group)])


def _warnings(found: Sequence[Subject | Group]) -> list[str]:
    from calattn.cli import over_seeds, same_data

    single = [list(each.runs.values()) if isinstance(each, over_seeds.Group) else [each] for each in found]
    doubt = same_data.warning(list(itertools.chain.from_iterable(single)))
    return [] if doubt is None else [doubt]


def _plain(subject: Subject | Group) -> str:
    return subject.title.replace("\n", " ")
