"""`calattn evaluate`: metrics of saved predictions, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calattn.cli import options
from calattn.cli.console import note
from calattn.cli.errors import examples
from calattn.cli.judgement import Judgement, check_outputs, doubts, plain, working

if TYPE_CHECKING:
    from calattn import Difference, Evaluation, Predictions
    from calattn.cli.subjects import Blocks, PredictionSet

# One number each for: is it right, are its probabilities good (two proper scores), are they calibrated, do they rank errors?
_MAIN = ("accuracy", "nll", "brier", "ece", "aurc")


@options.flat
def evaluate(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...", help="Files (.npz .csv .parquet .safetensors .pt …), predictions folders, run folders."
        ),
    ],
    part: options.RunPart,
    measure: options.Measure,
    scaling: options.Scaling,
    target: options.Target = None,
    everything: Annotated[
        bool, options.option(options.MEASURING, "--all", text="Show every metric, not only the main five.")
    ] = False,
    reader: options.FileFlags = options.FILE_FLAGS,
    out: options.TableOut = None,
    diagram: Annotated[
        Path | None,
        options.option(options.OUTPUT, "--diagram", text="Draw reliability diagrams: .png, .pdf, .svg."),
    ] = None,
    html: options.Html = None,
    data_root: options.DataRoot = None,
    json: options.Json = False,
) -> None:
    """Accuracy, NLL, Brier score, ECE and AURC of saved predictions, each with an interval; [bold]--all[/bold] shows more.

    Metrics are rows and files are columns, in per cent (NLL in nats). Logits or probabilities are never guessed: where the
    names in a file do not show it, use [bold]--kind[/bold]. JSON and CSV have every metric.
    """
    import calattn
    from calattn.cli import subjects
    from calattn.report import evaluation_table

    check_outputs([*paths, *scaling.files], out=out, html=html, diagram=diagram)
    measure.arguments()  # finds an unknown metric before anything is read
    found = subjects.find(paths, reader=reader, part=part)
    if scaling.wanted():
        found = [each for pair in zip(found, subjects.scaled(found, scaling), strict=True) for each in pair]
    sources = {each.title: each.source() for each in found}
    evaluations = {}
    for title, source in sources.items():
        with working(f"evaluating {title}", source):
            evaluations[title] = calattn.evaluate(source, target=target, **measure.arguments())
    for title, evaluation in evaluations.items():
        _warn_below_chance(title, evaluation)
    measured = list(next(iter(evaluations.values())))
    shown = measured if everything or measure.metrics else [name for name in measured if name in _MAIN]
    paired = {} if html is None else _paired(found, list(sources.values()))
    doubted = doubts([found[0], *(found[place] for place in paired)])
    judgement = Judgement(
        table=evaluation_table(evaluations, metrics=shown),
        document=_document(evaluations, found, doubted),
        warnings=doubted,
    )
    judgement.show(as_json=json)
    judgement.write(out)
    if diagram is not None:
        from calattn.report.reliability import reliability_diagrams, save_figure

        save_figure(reliability_diagrams(sources, num_bins=measure.bins, target=target), diagram)
        note(f"wrote {diagram}")
    if html is not None:
        from calattn.cli import pages

        differences = _differences(found, next(iter(sources.values())), paired, measure, target)
        files = [subjects.of_file(path, reader) for path in scaling.files]
        validations = {2 * i: each.predictions() for i, each in enumerate(files)}  # each is followed by itself, scaled
        judged = [
            pages.Judged(
                subject=each,
                source=sources[each.title],
                evaluation=evaluations[each.title],
                differences=differences.get(place),
                validation=validations.get(place),
            )
            for place, each in enumerate(found)
        ]
        pages.write(html, judged, warnings=doubted, data_root=data_root)
    if len(shown) < len(measured) and not json:
        note(f"{len(shown)} of {len(measured)} metrics; --all shows all of them")


evaluate.epilog = examples(  # type: ignore[attr-defined]
    "calattn evaluate test.npz --html report.html",
    "calattn evaluate a.csv b.parquet --kind probs --metrics ece,nll --out table.tex",
    "calattn evaluate runs/calattn --split validation,test --ts --diagram reliability.png",
    "calattn evaluate test.npz --ts --validation validation.npz --all",
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


def _document(evaluations: dict[str, Evaluation], found: list[PredictionSet], doubted: list[str]) -> dict[str, Any]:
    first = next(iter(evaluations.values()))
    return {
        "schema": 1,
        "command": "evaluate",
        "bins": first.options.num_bins,
        "level": first.level,
        "resamples": first.num_bootstrap,
        "warnings": doubted,
        "results": [
            each.described()
            | {"samples": evaluation.num_samples, "classes": evaluation.num_classes}
            | {"target": evaluation.options.target, "metrics": evaluation.as_dict()}
            for each, evaluation in zip(found, evaluations.values(), strict=True)
        ],
    }


def _paired(found: list[PredictionSet], sources: list[Predictions | Blocks]) -> dict[int, Predictions]:
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


def _differences(
    found: list[PredictionSet],
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
