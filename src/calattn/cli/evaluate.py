"""`calattn evaluate`: every metric of saved predictions, with intervals."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from calattn.cli import options
from calattn.cli.console import errors_to, json_text, note, print_json, print_table
from calattn.cli.errors import examples

if TYPE_CHECKING:
    from calattn import Difference, Evaluation, Predictions
    from calattn.cli.subjects import Blocks, Subject

OUTPUTS = (".json", ".csv", ".md", ".tex")


@options.flat
def evaluate(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...", help="Files (.npz .csv .parquet .safetensors .pt …), predictions folders, run folders."
        ),
    ],
    choice: options.Choice,
    measure: options.Measure,
    scaling: options.Scaling,
    target: options.Target = None,
    reader: options.Reader = options.READER,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the table: .json, .csv, .md or .tex.", rich_help_panel=options.OUTPUT),
    ] = None,
    diagram: Annotated[
        Path | None,
        typer.Option("--diagram", help="Draw reliability diagrams: .png, .pdf, .svg.", rich_help_panel=options.OUTPUT),
    ] = None,
    html: options.Html = None,
    data_root: options.DataRoot = None,
    json: options.Json = False,
) -> None:
    """Accuracy, NLL, Brier score, ECE and its kin of saved predictions, each with an interval.

    Metrics are rows and files are columns, in per cent (NLL in nats). Logits or probabilities are never guessed: where the
    names in a file do not say, [bold]--kind[/bold] does.
    """
    import calattn
    from calattn.cli import subjects

    check_output(out, OUTPUTS, "--out")
    check_output(diagram, (".png", ".pdf", ".svg"), "--diagram")
    check_output(html, (".html", ".htm"), "--html")
    check_not_input([*paths, *scaling.files], out=out, html=html, diagram=diagram)
    measure.arguments()  # finds an unknown metric before anything is read
    found = subjects.find(paths, reader=reader, choice=choice)
    if scaling.wanted():
        found = [each for pair in zip(found, subjects.scaled(found, scaling), strict=True) for each in pair]
    sources = {each.title: each.source() for each in found}
    evaluations = {}
    for title, source in sources.items():
        with working(f"evaluating {title}", source):
            evaluations[title] = calattn.evaluate(source, target=target, **measure.arguments())
    for title, evaluation in evaluations.items():
        _warn_below_chance(title, evaluation)
    paired = {} if html is None else _paired(found, list(sources.values()))
    said = doubts([found[0], *(found[place] for place in paired)])
    for doubt in said:
        warnings.warn(doubt, stacklevel=1)
    if json:
        print_json(document(evaluations, found, said))
    else:
        from calattn.report import evaluation_table

        print_table(evaluation_table(evaluations))
    write(out, evaluations, found, said)
    if diagram is not None:
        from calattn.report.reliability import reliability_diagrams, save_figure

        save_figure(reliability_diagrams(sources, num_bins=measure.bins, target=target), diagram)
        note(f"wrote {diagram}")
    if html is not None:
        from calattn.cli import pages

        files = [subjects.of_file(path, reader) for path in scaling.files]
        pages.write(
            html,
            found,
            list(sources.values()),
            list(evaluations.values()),
            comparisons=_comparisons(found, next(iter(sources.values())), paired, measure, target),
            validations={2 * i: each.predictions() for i, each in enumerate(files)},
            warnings=said,
            data_root=data_root,
        )


evaluate.epilog = examples(  # type: ignore[attr-defined]
    "calattn evaluate test.npz --html report.html",
    "calattn evaluate a.csv b.parquet --kind probs --metrics ece,nll --out table.tex",
    "calattn evaluate runs/calattn --split validation,test --ts --diagram reliability.png",
    "calattn evaluate test.npz --ts --validation validation.npz --json",
    "calattn evaluate fraud.csv --target 1 --diagram reliability.png",
)


def _warn_below_chance(title: str, evaluation: Evaluation) -> None:
    """Far below chance, something is read wrongly more often than a model is that bad."""
    row, n = evaluation.rows.get("accuracy"), evaluation.num_samples
    chance = 1 / evaluation.num_classes
    if row is not None and row.value + 3 * (chance * (1 - chance) / n) ** 0.5 < chance:
        note(
            f"{title}: an accuracy of {100 * row.value:.1f} % is below chance ({100 * chance:.1f} % of "
            f"{evaluation.num_classes} classes); are labels and columns what they should be? --label-offset, --columns "
            "and --ignore change how they are read"
        )


def _paired(found: list[Subject], sources: list[Predictions | Blocks]) -> dict[int, Predictions]:
    """Those of the first's samples, in its order, by their place; a note where they are of others."""
    import calattn
    from calattn.comparison import same_samples

    a, result = sources[0], {}
    for place, b in enumerate(sources[1:], start=1):
        name_a, name_b = (plain(found[i].title) for i in (0, place))
        if not isinstance(a, calattn.Predictions) or not isinstance(b, calattn.Predictions):
            note(
                f"{name_b} is not compared with {name_a} on the page: files of this size are compared by calattn compare"
            )
            continue
        try:
            result[place] = same_samples({name_a: a, name_b: b})[name_b]
        except ValueError as error:
            note(f"{name_b} is not compared with {name_a} on the page: {error}")
    return result  # type: ignore[return-value]


def doubts(compared: Sequence[Subject]) -> list[str]:
    """What is to be said of comparisons, on stderr, in JSON and on the page: whether they are of the same data."""
    from calattn.comparison import data_warning

    doubt = data_warning((each.name, each.data()) for each in compared)
    return [] if doubt is None else [doubt]


def plain(title: str) -> str:
    """A title on one line."""
    return title.replace("\n", " ")


def _comparisons(
    found: list[Subject],
    first: Predictions | Blocks,
    paired: dict[int, Predictions],
    measure: options.Measure,
    target: str | None,
) -> dict[int, dict[str, Difference]]:
    """Each against the first; none without resamples."""
    import calattn

    arguments = measure.arguments()
    result = {}
    for place, predictions in paired.items() if arguments["num_bootstrap"] != 0 else ():
        name_a, name_b = (plain(found[i].title) for i in (0, place))
        with working(f"comparing {name_b} with {name_a}", predictions):
            result[place] = calattn.compare(first, predictions, target=target, **arguments)
    return result


@contextlib.contextmanager
def working(text: str, source: Predictions | Blocks) -> Iterator[None]:
    """Says what is going on, unless the source has a progress bar of its own."""
    from calattn.cli.subjects import Blocks

    if isinstance(source, Blocks) or not errors_to().is_terminal:
        yield
        return
    with errors_to().status(escape(plain(text))):
        yield


def document(evaluations: dict[str, Evaluation], found: list[Subject], said: Sequence[str]) -> dict[str, Any]:
    """The stable JSON form (schema 1): fractions in full precision."""
    first = next(iter(evaluations.values()))
    return {
        "schema": 1,
        "command": "evaluate",
        "bins": first.options.num_bins,
        "level": first.level,
        "resamples": first.num_bootstrap,
        "warnings": list(said),
        "results": [
            each.described()
            | {"samples": evaluation.num_samples, "classes": evaluation.num_classes}
            | {"target": evaluation.options.target, "metrics": evaluation.as_dict()}
            for each, evaluation in zip(found, evaluations.values(), strict=True)
        ],
    }


def write(out: Path | None, evaluations: dict[str, Evaluation], found: list[Subject], said: Sequence[str]) -> None:
    from calattn.report import evaluation_table

    if out is None:
        return
    table = evaluation_table(evaluations)
    if out.suffix == ".json":
        text = json_text(document(evaluations, found, said))
    else:
        text = {".tex": table.latex, ".md": table.markdown, ".csv": table.csv}[out.suffix]()
    write_text(out, text)


def write_text(path: Path, text: str) -> None:
    """A result file, whole or not at all."""
    from calattn.files.atomic import atomic_write

    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")
    note(f"wrote {path}")


def check_not_input(inputs: Sequence[Path], **outputs: Path | None) -> None:
    """An output must not replace what was read; `outputs` by the names of their flags."""
    read = {path.resolve() for path in inputs}
    for flag, path in outputs.items():
        if path is not None and path.resolve() in read:
            raise ValueError(f"--{flag} {path} is also read, and would be replaced; name another file")


def check_output(path: Path | None, suffixes: tuple[str, ...], flag: str) -> None:
    """An output file's name has to say its format, and its place has to take it; found out before the work, not after."""
    from calattn.files.atomic import check_writable

    if path is None:
        return
    if path.suffix not in suffixes:
        raise ValueError(f"{flag} {path} must end in {', '.join(suffixes)}")
    if path.is_dir():
        raise ValueError(f"{flag} {path} is a folder; name a file in it")
    check_writable(path)
