"""What every number on a page or in a table means, in a sentence or two."""

from __future__ import annotations

from calattn.metrics.state import METRICS, WITH_EVENT, Options
from calattn.report.style import percent, title_of

_MORE = (
    ("confidence", "The largest probability of a sample. “Says” is its mean, “right” the accuracy."),
    (
        "temperature T",
        "All logits are divided by T before the softmax. T above 1 makes the probabilities more modest, below 1 bolder; the "
        "predicted class stays. T* is the temperature with the lowest NLL, or (of 0.1, 0.2, …, 10) the lowest ECE. Fitted "
        "on validation data it is a fair repair; fitted on the predictions that are shown, it flatters.",
    ),
    (
        "consistency bars",
        "Where the accuracy of a bin would lie, {level} of the time, if every confidence were true: quantiles of "
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
        "Both sets of predictions are resampled with the same samples, so what they share cancels. A difference is called "
        "real where its interval leaves out zero; p is twice the share of resamples on the other side of zero. Many metrics "
        "are compared at once: one in twenty may look real by chance.",
    ),
)


def definitions(options: Options, *, level: float, resamples: int) -> list[tuple[str, str]]:
    """(title, text) of every metric, then of the other words."""
    names = [name for name in METRICS if options.target is None or name in WITH_EVENT]
    found = [(title_of(name, options), METRICS.text(name, options)) for name in names]
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
        f"The probability of class {name}, whatever class is predicted. Below, it is called the confidence, and the share of the "
        f"samples whose label is {name} the accuracy. “Says” is the mean of the one, “happens” is the other. "
        "NLL and Brier score are of all classes.",
    )
