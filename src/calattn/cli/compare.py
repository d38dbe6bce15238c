"""`calattn compare`: is B better than A, or is it chance?"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calattn.cli import options
from calattn.cli.console import json_text, note, print_json, print_table, results_to
from calattn.cli.errors import examples
from calattn.cli.evaluate import OUTPUTS, check_not_input, check_output, doubts, plain, working, write_text

if TYPE_CHECKING:
    from calattn import Difference, Predictions
    from calattn.cli.subjects import Blocks, Subject
    from calattn.comparison import Method, SeedsDifference
    from calattn.metrics.state import Options
    from calattn.report import Table


@options.flat
def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="A B...", help="Files, predictions folders or run folders; the first is the baseline."),
    ],
    choice: options.Choice,
    measure: options.Measure,
    scaling: options.Scaling,
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
    check_not_input([*paths, *scaling.files], out=out, html=html)
    measure.arguments()  # finds an unknown metric before anything is read
    if len(choice.splits()) > 1:
        raise ValueError("--split names several splits; compare takes one at a time")
    found = subjects.find(paths, reader=reader, choice=choice)
    if len(found) < 2:
        raise ValueError("compare needs two or more paths: calattn compare A B")
    if scaling.wanted():
        found = subjects.scaled(found, scaling)
    if over_seeds and html is not None:
        raise ValueError("--html shows single runs; leave it out, or --over-seeds")
    sources: list[Predictions | Blocks] = [] if over_seeds else _sources(found)
    compared = _over_seeds(found, measure, target) if over_seeds else _singly(found, sources, measure, target)
    compared.show(as_json=json)
    compared.write(out)
    if html is not None:
        _page(html, found, sources, compared, measure=measure, target=target, data_root=data_root)


compare.epilog = examples(  # type: ignore[attr-defined]
    "calattn compare baseline.npz calattn.npz --html both.html",
    "calattn compare runs/baseline runs/calattn --ts --metrics nll,ece",
    "calattn compare a.npz b.npz --ts --validation a_val.npz --validation b_val.npz",
    "calattn compare runs/a runs/b runs/c --checkpoint best-nll --out table.md",
    "calattn compare old.csv new.csv --target fraud",
    "calattn compare runs/ce-seed* runs/calattn-seed* --over-seeds",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """What the command shows and writes: differences from the first side, and what is to be said of them.

    `sides` are described for JSON, the baseline first; `comparisons` are those of the others, by title.
    """

    sides: list[dict[str, Any]]
    baseline: str
    comparisons: Mapping[str, Mapping[str, Difference]]
    samples: int
    level: float
    warnings: list[str]
    remark: str | None = None

    @property
    def options(self) -> Options | None:
        """What all differences were measured with, the target's name included; None where nothing could be compared."""
        return next((each.options for part in self.comparisons.values() for each in part.values()), None)

    @property
    def table(self) -> Table:
        from calattn.report import difference_table

        return difference_table(self.comparisons, baseline=self.baseline, level=self.level, options=self.options)

    def summaries(self) -> Iterator[tuple[str, list[str], str]]:
        """Of each comparison its title, a sentence for each difference, and one for all."""
        from calattn.report import sentence
        from calattn.report.results import summary

        for title, part in self.comparisons.items():
            of_all = summary(part, a=plain(self.baseline), b=plain(title), options=self.options)
            yield plain(title), [sentence(each, self.options) for each in part.values()], of_all

    def show(self, *, as_json: bool) -> None:
        for doubt in self.warnings:
            warnings.warn(doubt, stacklevel=1)
        if as_json:
            print_json(self.document())
        else:
            print_table(self.table)
            console = results_to()
            for title, sentences, summary in self.summaries():
                console.print(f"\n{title} against {plain(self.baseline)}, {self.samples:,} samples:", markup=False)
                for each in sentences:
                    console.print(f"  {each}", markup=False)
                console.print(summary, markup=False, soft_wrap=True)
        if self.remark is not None:
            note(self.remark)

    def document(self) -> dict[str, Any]:
        """The stable JSON form (schema 1): fractions in full precision."""
        names = ("a", "b", "difference", "low", "high", "p_value", "significant", "std_a", "std_b", "num_seeds")
        parts = zip(self.sides[1:], self.comparisons.values(), self.summaries(), strict=True)
        return {
            "schema": 1,
            "command": "compare",
            "level": self.level,
            "target": None if self.options is None else self.options.target,
            "samples": self.samples,
            "remark": self.remark,
            "warnings": self.warnings,
            "baseline": self.sides[0],
            "comparisons": [
                side
                | {
                    "summary": summary,
                    "differences": {
                        metric: {name: getattr(each, name) for name in names if hasattr(each, name)}
                        | {"sentence": text}
                        for (metric, each), text in zip(part.items(), sentences, strict=True)
                    },
                }
                for side, part, (_, sentences, summary) in parts
            ],
        }

    def write(self, out: Path | None) -> None:
        if out is None:
            return
        remarks = [*([self.remark] if self.remark else []), *self.warnings]
        if out.suffix == ".json":
            text = json_text(self.document())
        elif out.suffix == ".csv":
            text = self.table.csv()
        elif out.suffix == ".tex":
            text = self.table.latex(notes=remarks)
        else:
            words = [f"{title}: {each}" for title, sentences, _ in self.summaries() for each in sentences]
            text = self.table.markdown() + "".join(f"\n- {each}" for each in (*words, *remarks)) + "\n"
        write_text(out, text)


def _page(
    html: Path,
    found: list[Subject],
    sources: list[Predictions | Blocks],
    compared: Compared,
    *,
    measure: options.Measure,
    target: str | None,
    data_root: Path | None,
) -> None:
    import calattn
    from calattn.cli import pages

    evaluations = []
    for each, source in zip(found, sources, strict=True):
        with working(f"evaluating {each.title}", source):
            evaluations.append(calattn.evaluate(source, target=target, **measure.arguments()))
    numbered = dict(enumerate(compared.comparisons.values(), start=1))
    pages.write(
        html, found, sources, evaluations, comparisons=numbered, warnings=compared.warnings, data_root=data_root
    )


def _singly(
    found: list[Subject], sources: list[Predictions | Blocks], measure: options.Measure, target: str | None
) -> Compared:
    """Each against the first."""
    import calattn
    from calattn.cli import subjects
    from calattn.comparison.trainings import remark_on

    comparisons = {}
    for each, source in zip(found[1:], sources[1:], strict=True):
        with working(f"comparing {each.title} with {found[0].title}", source):
            comparisons[each.title] = calattn.compare(sources[0], source, target=target, **measure.arguments())
    try:
        remark = remark_on({each.name: each.training() for each in found}) if all(each.run for each in found) else None
    except ValueError:  # a spec that cannot be read
        remark = None
    return Compared(
        sides=[each.described() for each in found],
        baseline=found[0].title,
        comparisons=comparisons,
        samples=subjects.count(sources[0]),
        level=measure.level,
        warnings=doubts(found),
        remark=remark,
    )


def _over_seeds(found: list[Subject], measure: options.Measure, target: str | None) -> Compared:
    """Each method against the first, over the seeds that both have."""
    from calattn.cli import subjects
    from calattn.comparison import common_seeds, compare_over_seeds, methods_of

    by_name = {each.name: each for each in found}
    scaled = " + TS" * any(each.calibrator is not None for each in found)
    first, *others = methods_of({name: each.training() for name, each in by_name.items()}, after=scaled)
    samples = 0

    def pairs(a: Method, b: Method) -> Iterator[tuple[Predictions | Blocks, Predictions | Blocks]]:
        nonlocal samples
        for seed in common_seeds(a, b):
            pair = [by_name[method.runs[seed]] for method in (a, b)]
            one, other = _sources(pair)
            with working(f"comparing {pair[1].title} with {pair[0].title}", other):
                yield one, other
            samples = subjects.count(one)

    comparisons: dict[str, dict[str, SeedsDifference]] = {
        other.title: compare_over_seeds(pairs(first, other), target=target, **measure.arguments()) for other in others
    }
    return Compared(
        sides=[
            {
                "title": method.title,
                "runs": [{"seed": seed} | by_name[name].described() for seed, name in method.runs.items()],
            }
            for method in (first, *others)
        ],
        baseline=first.title,
        comparisons=comparisons,
        samples=samples,
        level=measure.level,
        warnings=doubts(found),
    )


def _sources(found: Sequence[Subject]) -> list[Predictions | Blocks]:
    """The predictions of all, in the order of the first."""
    from calattn.comparison import same_samples

    given = {plain(each.title): each.source() for each in found}
    aligned = same_samples(given)
    first = next(iter(given))
    for name, source in aligned.items():
        if source is not given[name]:
            note(f"{name} was put in the order of {first} by sample index")
    return list(aligned.values())  # type: ignore[arg-type]
