"""The page's document: everything it shows, as plain data (schema 1)."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from jaxtyping import Int
from torch import Tensor

from calattn.distribution import version
from calattn.metrics.classbins import ClassBins
from calattn.metrics.columns import Columns
from calattn.metrics.evaluation import Difference, Evaluation
from calattn.metrics.sources import columns_in
from calattn.metrics.state import METRICS, WITH_EVENT, Options
from calattn.posthoc import FitWarning, TemperatureScaling
from calattn.report.evaluations import described, described_groups, summary
from calattn.report.page import panels
from calattn.report.page.temperatures import OCTAVE, TemperatureProfile, slider_grid, temperature_profile
from calattn.report.style import percent, unit_of
from calattn.report.verdict import ClassOne, Gaps, event_verdict, short, verdict, verdict_of
from calattn.types import Predictions

SCHEMA = 1
MOST_SAMPLES = 200_000  # a picture of more looks the same, and the page is made in seconds
CARDS = ("accuracy", "ece", "nll", "brier")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One set of predictions on the page, and what is known about it.

    `evaluation` is of all samples; `predictions` may be a part of them, and `rows` then says which. `validation`: what T*
    may be fitted on. `images` gives PNG files for rows of `predictions`, `log` are the epochs of the run's log,
    `provenance` are pairs of name and value.
    """

    title: str
    predictions: Predictions
    evaluation: Evaluation
    rows: Int[Tensor, " n"] | None = None
    validation: Predictions | None = None
    images: Callable[[Sequence[int]], Mapping[int, bytes]] | None = None
    log: Sequence[Mapping[str, Any]] = ()
    marks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    provenance: Sequence[tuple[str, str]] = ()
    spec: str | None = None


def build_document(
    exhibits: Sequence[Exhibit],
    *,
    comparisons: Mapping[int, Mapping[str, Difference]] | None = None,
    title: str | None = None,
    home: str | None = None,
    warnings: Sequence[str] = (),
    step: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """What the page shows of the exhibits; `comparisons` are differences from the first, by exhibit number.

    `home` is the page that links here, beside this one. `warnings` stand above everything else. `step` is told what is being
    worked on.
    """
    if not exhibits:
        raise ValueError("exhibits is empty: there is nothing to show")
    if len({_target_of(exhibit) for exhibit in exhibits}) > 1:
        raise ValueError("exhibits differ in target: evaluate all of them with the same, or all without")
    octave = OCTAVE if len(exhibits) <= 4 else OCTAVE // 2  # a page of many stays below its six megabytes
    subjects = []
    for place, exhibit in enumerate(exhibits):
        if step is not None:
            step(f"page: {exhibit.title}")
        subjects.append({"id": f"s{place}", **_subject(exhibit, octave)})
    first = exhibits[0].evaluation
    return {
        "schema": SCHEMA,
        "version": version(),
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "title": title or ", ".join(exhibit.title for exhibit in exhibits),
        "level": first.level,
        "z": NormalDist().inv_cdf((1 + first.level) / 2),
        "home": home,
        "warnings": list(warnings),
        "subjects": subjects,
        "comparisons": [
            _comparison(exhibits, place, differences) for place, differences in (comparisons or {}).items()
        ],
        "methods": [
            list(pair) for pair in definitions(first.options, level=first.level, resamples=first.num_bootstrap)
        ],
    }


def _target_of(exhibit: Exhibit) -> str | None:
    """By its name: files may list the same classes in another order."""
    target = exhibit.evaluation.options.target
    return None if target is None else panels.name_of(exhibit.predictions, target)


def _subject(exhibit: Exhibit, octave: int) -> dict[str, Any]:
    chosen = drawn(len(exhibit.predictions))
    shown = exhibit.predictions if chosen is None else exhibit.predictions.select(chosen)
    evaluation = exhibit.evaluation
    target = evaluation.options.target
    name = None if target is None else short(panels.name_of(shown, target))
    classes = ClassBins.empty(shown.num_classes, evaluation.options.num_bins)
    collector = classes.collector()
    columns = columns_in(shown, target, visit=collector if target is None else None)
    collector.finish()
    best = _best_temperature(exhibit, shown)
    grid = slider_grid([] if best is None else [best["value"]], octave=octave)
    profile = temperature_profile(shown, columns, grid, target=target)
    total = evaluation.num_samples
    part = f"drawn from {len(shown):,} of {total:,} samples, chosen at random" if len(shown) < total else None
    return {
        "title": exhibit.title,
        "samples": total,
        "classes": shown.num_classes,
        "class_names": None if shown.class_names is None else list(shown.class_names),
        "shown": part,
        "bins": evaluation.options.num_bins,
        "target": name,
        "verdict": verdict_of(shown, target=target),
        "metrics": _metrics(evaluation),
        "groups": finite(described_groups(evaluation)),
        "cards": [name for name in CARDS if name in evaluation.rows],
        "temperature": profile.as_dict() | {"verdicts": _verdicts(profile, shown, name), "best": best},
        **({} if target is not None else _of_predicted_class(exhibit, shown, columns, classes, chosen)),
        "dynamics": panels.dynamics(exhibit.log, exhibit.marks),
        "provenance": [[name, str(value)] for name, value in exhibit.provenance],
        "spec": exhibit.spec,
    }


def _of_predicted_class(
    exhibit: Exhibit, shown: Predictions, columns: Columns, classes: ClassBins, chosen: Int[Tensor, " m"] | None
) -> dict[str, Any]:
    """The panels that ask whether the predicted class is correct: with a target, the page is without them."""
    return {
        "risk_coverage": panels.risk_coverage(columns),
        "per_class": panels.per_class(shown, columns, classes),
        **panels.errors(
            shown,
            columns,
            threshold=exhibit.evaluation.options.threshold,
            places=torch.arange(len(shown)) if chosen is None else chosen,
            rows=exhibit.rows,
            images=exhibit.images,
        ),
        "scale": panels.scales(shown, columns),
    }


def drawn(n: int) -> Int[Tensor, " m"] | None:
    """Which of n samples are drawn, in their order; None where all are.

    At random, by a fixed seed: every second one would be all of one kind in a file that alternates.
    """
    if n <= MOST_SAMPLES:
        return None
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:MOST_SAMPLES].sort().values


def sampled(blocks: Iterable[Predictions], total: int) -> tuple[Predictions, Int[Tensor, " m"]]:
    """Of predictions that do not fit into memory, `total` samples in blocks, those that are drawn; and their rows."""
    chosen = drawn(total)
    rows = torch.arange(total) if chosen is None else chosen
    parts, offset = [], 0
    for block in blocks:
        inside = rows[(rows >= offset) & (rows < offset + len(block))] - offset
        if len(inside):
            parts.append(block.select(inside))
        offset += len(block)
    return Predictions.cat(parts), rows


def _verdicts(profile: TemperatureProfile, shown: Predictions, name: str | None) -> list[dict[str, str]]:
    """The verdict at each temperature: its kind, its words, and the headline with its numbers; `name` is the target's."""
    event = ClassOne.of(shown) if name is None else None
    found = []
    for temperature, *sums in zip(profile.grid, profile.count, profile.confidence, profile.correct, strict=True):
        gaps = Gaps.of_bins(*sums)
        if event is not None and event.biased:  # else nothing is said of class 1
            scaled = shown.replace(logits=shown.logits / temperature)
            event = event._replace(gaps=Gaps.of(columns_in(scaled, target=1).cpu()))
        found.append(verdict(gaps, event=event) if name is None else event_verdict(gaps, name))
    return [{key: each[key] for key in ("kind", "words", "headline")} for each in found]


def _best_temperature(exhibit: Exhibit, shown: Predictions) -> dict[str, Any] | None:
    """T* by NLL, fitted on validation where there is one; it may lie beyond the slider. None where there is no optimum."""
    on, where = (exhibit.validation, "validation") if exhibit.validation is not None else (shown, "these predictions")
    chosen = drawn(len(on))
    on = on if chosen is None else on.select(chosen)
    if not bool((on.logits.gather(1, on.labels.unsqueeze(1)) > -torch.inf).all()):  # NLL is infinite at every T
        return None
    with catch_warnings():  # no optimum is a fact about the predictions: the page then marks none
        simplefilter("ignore", FitWarning)
        fitted = TemperatureScaling().fit(on)
    return {"value": float(fitted.temperature_), "fitted_on": where} if fitted.converged_ else None


def _metrics(evaluation: Evaluation) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            **printed(name, evaluation.options),
            "value": finite(row.value),
            "infinite": math.isinf(row.value),
            "low": finite(row.low),
            "high": finite(row.high),
        }
        for name, row in evaluation.rows.items()
    ]


def printed(name: str, options: Options) -> dict[str, Any]:
    """A metric's title, how its value is printed, and which end of it is better."""
    factor, places, unit = unit_of(name)
    return {
        "title": METRICS.title(name, options),
        "factor": factor,
        "places": places,
        "unit": "%" if unit == "points" else unit,
        "better": "low" if METRICS[name].better == "lower" else "high",
    }


def _comparison(exhibits: Sequence[Exhibit], place: int, differences: Mapping[str, Difference]) -> dict[str, Any]:
    options = exhibits[0].evaluation.options
    rows = [
        {"name": name, **printed(name, options), **finite(described(each, options))}
        for name, each in differences.items()
    ]
    main = [name for name in CARDS if name in differences] or list(differences)
    told = {name: differences[name] for name in main}
    words = summary(told, a=exhibits[0].title, b=exhibits[place].title, options=options)
    return {"a": "s0", "b": f"s{place}", "main": main, "rows": rows, "summary": words}


def contest_entry(found: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The entry "contest" of a page's document: what `--json` says of it, and how its metrics are printed."""
    names = next((row["from_before"] for row in found["methods"] if row["from_before"]), found["before"])
    return finite(found) | {"metrics": [{"name": name, **printed(name, options)} for name in names]}


def finite(value: Any) -> Any:
    """The value, or all in it; JSON has no word for what is infinite or undefined."""
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_MORE = (
    ("confidence", "The largest probability of a sample. Charts and numbers show its mean, beside the accuracy."),
    (
        "temperature T",
        "All logits are divided by T before the softmax. T above 1 lowers the confidence, T below 1 raises it; the predicted "
        "class stays. T* is the temperature with the lowest NLL. Fitted on validation data it is a fair estimate; fitted on "
        "the predictions shown, it looks better than it is, as does the lowest ECE of the curve.",
    ),
    (
        "consistency bars",
        "Where the accuracy of a bin would lie, {level} of the time, if the model were calibrated: quantiles of "
        "Binomial(count, mean confidence) / count.",
    ),
    (
        "smooth curve",
        "Accuracy against confidence without bins: both averaged with a reflected Gaussian kernel of bandwidth 0.05, and "
        "drawn where enough samples lie.",
    ),
    ("coverage", "Share of the samples that are acted on when only those above a confidence are."),
    ("s", "CalAttn's temperature of a single sample: its logits are divided by s before the softmax."),
    (
        "difference",
        "Both sets of predictions are resampled with the same samples, so what they share cancels. p is twice the share of "
        "resamples on the other side of zero. A difference is called real where its {level} interval leaves out zero and p is "
        "small enough too. Many metrics are compared at once: at 95 %, one in twenty may look real by chance.",
    ),
)


def definitions(options: Options, *, level: float, resamples: int) -> list[tuple[str, str]]:
    """(title, text) of every metric, then of the other words."""
    names = [name for name in METRICS if options.target is None or name in WITH_EVENT]
    found = [(METRICS.title(name, options), METRICS.text(name, options)) for name in names]
    event, more = ([], _MORE) if options.target is None else ([_of_event(options)], _MORE[1:])
    drawn = (
        f"{percent(level)} bootstrap intervals from {resamples:,} resamples, moved so that they centre on the value."
    )
    intervals = ("intervals", drawn if resamples else "No intervals were computed.")
    return [*event, *found, intervals, *((title, text.replace("{level}", percent(level))) for title, text in more)]


def _of_event(options: Options) -> tuple[str, str]:
    name = options.target if options.target_name is None else options.target_name
    return (
        str(options.event),
        f"The probability of class {name}, whatever class is predicted. Below and on the axes, confidence means this "
        f"probability, and accuracy means the share of the samples whose label is {name}. "
        "NLL and Brier score are of all classes.",
    )
