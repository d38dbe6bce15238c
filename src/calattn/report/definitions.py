"""What every number on a page or in a table means, in a sentence or two."""

from __future__ import annotations

from calattn.metrics.state import METRICS, WITH_EVENT, Options
from calattn.report.style import percent, title_of

# n samples; p the largest probability of a sample (its confidence), ŷ its class, y the label.
_TEXT = {
    "accuracy": "Share of the samples whose most probable class is the label. A temperature does not change it.",
    "nll": "Negative log-likelihood: mean of −ln(probability given to the label), in nats. A proper score: the true "
    "probabilities have the lowest expectation. One label that was given probability 0 makes it infinite.",
    "brier": "Mean over samples of the squared distance between the probabilities and the one-hot label, summed over "
    "classes (from 0 to 2, shown in per cent of 1). A proper score.",
    "ece": "Expected calibration error: samples are put into {bins} bins of equal width by confidence; the mean over bins, "
    "weighted by their share of the samples, of |mean confidence − accuracy|. Chance alone makes it positive: a calibrated "
    "model has an ECE above 0, the more so the fewer the samples.",
    "debiased_ece": "ECE less the part that chance adds to |mean confidence − accuracy| in each bin (normal noise of "
    "variance accuracy (1 − accuracy) / count). Around 0 for a calibrated model, where it may be negative.",
    "mce": "Maximum calibration error: the largest |mean confidence − accuracy| of the {bins} bins. A bin of a few samples "
    "can decide it.",
    "adaptive_ece": "ECE over {bins} bins of equal count instead of equal width.",
    "classwise_ece": "For each class, the ECE ({bins} equal-width bins) of its probability against whether the label is "
    "that class, over all samples; then the mean over classes.",
    "smooth_ece": "Smooth ECE: the bins are replaced by a Gaussian kernel (bandwidth {bandwidth}) that is reflected at 0 "
    "and 1; the integral of the absolute smoothed residual.",
    "kernel_ece": "Mean over samples of |confidence − kernel estimate of the accuracy at that confidence| (Gaussian kernel).",
    "misclassification_auroc": "Probability that a right prediction is more confident than a wrong one: 50 % is no better "
    "than a coin.",
    "aurc": "Area under the risk–coverage curve: the mean error rate among the k most confident samples, over all k.",
    "high_confidence_error_rate": "Error rate among the samples with confidence {threshold} or more.",
    "high_confidence_error_share": "Share of all errors that are made with confidence {threshold} or more.",
    "high_confidence_error_confidence": "Mean confidence of the errors made with confidence {threshold} or more.",
}
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
    words = {
        "bins": options.num_bins,
        "threshold": f"{options.threshold:g}",
        "bandwidth": "chosen from the data" if options.bandwidth is None else f"{options.bandwidth:g}",
    }
    names = [name for name in METRICS if options.target is None or name in WITH_EVENT]
    found = [(title_of(name, options), _text(name, words)) for name in names]
    event, more = ([], _MORE) if options.target is None else ([_of_event(options)], _MORE[1:])
    drawn = (
        f"{percent(level)} bootstrap intervals from {resamples:,} resamples, moved so that they centre on the value."
    )
    intervals = ("intervals", drawn if resamples else "No intervals were computed.")
    return [*event, *found, intervals, *((title, text.replace("{level}", percent(level))) for title, text in more)]


def _text(name: str, words: dict[str, object]) -> str:
    """What a metric is; of one that was added, in the words of whoever added it."""
    if name in _TEXT:
        return _TEXT[name].format(**words)
    return METRICS[name].text or f"A metric added under the name {name}; {METRICS[name].better} is better."


def _of_event(options: Options) -> tuple[str, str]:
    name = options.target if options.target_name is None else options.target_name
    return (
        str(options.event),
        f"The probability of class {name}, whatever class is predicted. Below, it is called the confidence, and the share of the "
        f"samples whose label is {name} the accuracy. “Says” is the mean of the one, “happens” is the other. "
        "NLL and Brier score are of all classes.",
    )
