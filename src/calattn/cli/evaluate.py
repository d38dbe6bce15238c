"""`calattn evaluate`: metrics of saved predictions, with intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from calattn.cli import options
from calattn.cli.console import note, progress
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
)

if TYPE_CHECKING:
    from calattn import Evaluation, Predictions
    from calattn.cli.subjects import Blocks, PredictionSet

# One number each for: is it right, are its probabilities good (two proper scores), are they calibrated, do they rank errors?
_MAIN = ("accuracy", "nll", "brier", "ece", "aurc")


@options.flat
def evaluate(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH", help="Files (.npz .csv .parquet .safetensors .pt …), predictions folders, run folders."
        ),
    ],
    part: options.RunPart,
    measure: options.Measure,
    scaling: options.Scaling,
    target: options.Target = None,
    everything: bool = options.flag(
        options.MEASURING, "--all", default=False, text="Show every metric, not only the main five."
    ),
    group: options.GroupColumn = None,
    cluster: options.ClusterColumn = None,
    reader: options.FileFlags = options.FILE_FLAGS,
    out: options.TableOut = None,
    diagram: Path | None = options.flag(
        options.OUTPUT, "--diagram", text="Draw reliability diagrams: .png, .pdf, .svg."
    ),
    html: options.Html = None,
    overwrite: options.Overwrite = False,
    data_root: options.DataRoot = None,
    engine: options.EngineFlags = options.ENGINE,
    json: options.Json = False,
) -> None:
    """Accuracy, NLL, Brier score, ECE and AURC of saved predictions, each with an interval; [bold]--all[/bold] shows more.

    Metrics are rows and files are columns, in per cent (NLL in nats). Logits or probabilities are never guessed: where the
    names in a file do not show it, use [bold]--kind[/bold]. JSON and CSV have every metric.
    """
    from calattn.cli import subjects
    from calattn.report import evaluation_table, group_table, leaderboard
    from calattn.report.verdict import verdict_of

    check_outputs([*paths, *scaling.files], out=out, html=html, diagram=diagram, overwrite=overwrite)
    options.unused(
        "shows more than the main five metrics, and --metrics names them", all=everything and measure.metrics
    )
    pictures_for_page(data_root, html)
    measure.arguments()  # finds an unknown metric before anything is read
    found = subjects.find(paths, reader=reader, part=part)
    if scaling.wanted():
        found = [each for pair in zip(found, subjects.scaled(found, scaling), strict=True) for each in pair]
    sources, columns = {}, {}
    verdicts: dict[str, dict[str, str]] = {}
    if engine.is_ray:
        why = "needs all rows on one machine; leave out --engine ray, or"
        options.unused(why, html=html, diagram=diagram, group=group, cluster=cluster)
        evaluations, verdicts = _on_ray(found, measure, target, engine.address)
    else:
        for each in found:
            sources[each.title], columns[each.title] = each.with_columns(groups=group, clusters=cluster)
        evaluations = evaluated(sources, measure, target, columns)
    for title, evaluation in evaluations.items():
        _warn_below_chance(title, evaluation)
    measured = list(next(iter(evaluations.values())))
    shown = measured if everything or measure.metrics else [name for name in measured if name in _MAIN]
    paired = dict(list(sources.items())[:1]) if html is None else _paired(sources)
    doubted = doubts([each for each in found if each.title in paired])
    verdicts |= {
        title: verdict_of(source, target=target, gaps=evaluations[title].gaps) for title, source in sources.items()
    }
    judgement = Judgement(
        table=(evaluation_table if group is None else group_table)(evaluations, metrics=shown),
        written=(leaderboard if group is None else group_table)(evaluations, metrics=shown),
        document=_document(evaluations, verdicts, found, doubted),
        said=[f"{plain(title)}: {verdict['headline']}" for title, verdict in verdicts.items()],
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

        clusters = columns[found[0].title].get("clusters")
        differences = {} if measure.bootstrap == 0 else compared(paired, measure, target, clusters)
        judged = pages.all_judged(found, sources, evaluations, differences)
        for place, path in enumerate(scaling.files):  # each is followed by itself, scaled
            validation = subjects.of_file(path, reader).predictions()
            judged[2 * place] = dataclasses.replace(judged[2 * place], validation=validation)
        pages.write(html, judged, data_root=data_root, more={"warnings": doubted, "remark": remark_of(found)})
    if len(shown) < len(measured) and not json:
        note(f"{len(shown)} of {len(measured)} metrics; --all shows all of them")


evaluate.epilog = examples(  # type: ignore[attr-defined]
    "calattn evaluate test.npz --html report.html",
    "calattn evaluate a.csv b.parquet --kind probs --metrics ece,nll --write table.tex",
    "calattn evaluate runs/calattn --split validation,test --ts --diagram reliability.png",
    "calattn evaluate test.npz --ts --validation validation.npz --all",
    "calattn evaluate fraud.csv --target 1 --diagram reliability.png",
    "calattn evaluate 'shards/*.parquet' --engine ray --address auto",
    "calattn evaluate pixels.parquet --group camera --cluster image --write cameras.csv",
)


def _on_ray(
    found: list[PredictionSet], measure: options.Measure, target: str | None, address: str | None
) -> tuple[dict[str, Evaluation], dict[str, dict[str, str]]]:
    """The evaluation of each and the verdict on it, by title, from parts that a cluster makes of their shards."""
    from calattn.sweeps.distributed import evaluated_over, shards_of
    from calattn.sweeps.on_ray import cluster, mapped

    evaluations, verdicts = {}, {}
    with cluster(address) as ray, progress() as bar:
        for each in found:
            task = bar.add_task(escape(plain(each.title)), total=None)

            def over(*arguments: Any, task: Any = task) -> Iterator[Any]:
                for result in mapped(ray)(*arguments):
                    bar.advance(task)
                    yield result

            shards = shards_of(each.path, each.reader.arguments(), each.calibrator)
            evaluations[each.title], verdicts[each.title] = evaluated_over(
                shards, over, target=target, **measure.arguments()
            )
    return evaluations, verdicts


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


def _document(
    evaluations: dict[str, Evaluation],
    verdicts: dict[str, dict[str, str]],
    found: list[PredictionSet],
    doubted: list[str],
) -> dict[str, Any]:
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
            | {"verdict": {key: verdicts[each.title][key] for key in ("kind", "headline", "detail")}}
            | _groups(evaluation)
            for each, evaluation in zip(found, evaluations.values(), strict=True)
        ],
    }


def _groups(evaluation: Evaluation) -> dict[str, Any]:
    """What JSON says of clusters and groups, where there are some."""
    from calattn.report.evaluations import described_groups

    clusters = {} if evaluation.num_clusters is None else {"clusters": evaluation.num_clusters}
    return clusters | ({"groups": described_groups(evaluation)} if evaluation.groups else {})


def _paired(sources: dict[str, Predictions | Blocks]) -> dict[str, Predictions | Blocks]:
    """The first, and those of its samples, in its order; a note where they are of others, or large."""
    import calattn
    from calattn.comparison import same_samples

    (first, a), *others = sources.items()
    result = {first: a}
    for title, b in others:
        try:
            if not isinstance(a, calattn.Predictions) or not isinstance(b, calattn.Predictions):
                raise ValueError("files of this size are compared by calattn compare")
            result[title] = same_samples({plain(first): a, plain(title): b})[plain(title)]  # type: ignore[assignment]
        except ValueError as error:
            note(f"{plain(title)} is not compared with {plain(first)} on the page: {error}")
    return result
