"""The figures draw numbers that scikit-learn, scipy, relplot and numpy agree with, and refuse what they cannot draw."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

import calattn
from calattn import report
from calattn.report.canvas import gather
from calattn.report.reliability import smooth_curve, smooth_curve_of
from calattn.report.scale import scale_groups, scales_of
from calattn.report.temperature import best_temperature, errors_at
from tests.cli_runner import predictions


def facts(found: calattn.Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Confidence and correctness, with scipy alone."""
    logits = found.logits.double().numpy() / (1 if found.scale is None else found.scale.double().numpy()[:, None])
    probs = softmax(logits, axis=1)
    return probs.max(axis=1), probs.argmax(axis=1) == found.labels.numpy()


def scaled(seed: int = 0, n: int = 600) -> calattn.Predictions:
    """Predictions with a scale that knows something: it is larger where the model is less sure."""
    found = predictions(seed, n=n)
    noise = torch.rand(n, generator=torch.Generator().manual_seed(seed))
    return found.replace(scale=1.6 - found.probs.amax(dim=1) + 0.5 * noise)


def line(ax, label: str) -> tuple[np.ndarray, np.ndarray]:
    (found,) = (each for each in ax.lines if each.get_label() == label)
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


# --- the smooth curve --------------------------------------------------------------------------------------------------


def test_smooth_curve_is_a_kernel_regression():
    """Against scipy's normal density and images of the points at p + 2m and −p + 2m."""
    generator = np.random.default_rng(0)
    points, right = generator.random(50), generator.random(50) < 0.6
    places, sigma = np.linspace(0, 1, 7), 0.3
    images = [sign * points + 2 * m for sign in (1, -1) for m in range(-3, 4)]
    kernel = sum(norm.pdf(places[:, None], image[None], sigma) for image in images)
    found = smooth_curve(
        torch.from_numpy(points), torch.from_numpy(right), at=torch.from_numpy(places), bandwidth=sigma
    )
    assert np.allclose(found.accuracy, kernel @ right / kernel.sum(axis=1), atol=1e-12)
    assert np.allclose(found.confidence, kernel @ points / kernel.sum(axis=1), atol=1e-12)
    assert np.allclose(found.density, kernel.mean(axis=1), atol=1e-12)
    assert np.allclose(found.samples, kernel.sum(axis=1) ** 2 / (kernel**2).sum(axis=1), atol=1e-9)


def test_smooth_curve_is_that_of_relplot():
    """Both its plain and its centred regression; relplot rounds to a grid and has a floor of 1e-4 in its density."""
    from relplot.diagrams import reliability_diagram as relplot_diagram
    from relplot.estimators import KernelSmoother
    from relplot.kernels import ReflectedGaussianKernel

    confidence, right = facts(predictions(n=3000))
    found = smooth_curve(torch.from_numpy(confidence), torch.from_numpy(right), at=torch.linspace(0, 1, 1000))
    for centred, curve in ((False, found.accuracy), (True, found.at + found.accuracy - found.confidence)):
        _, theirs = relplot_diagram(
            confidence, right, KernelSmoother(ReflectedGaussianKernel(0.05)), centered_fit=centred
        )
        inside = (found.samples > 50).numpy()
        assert inside.sum() > 500
        assert np.abs(curve.numpy() - theirs)[inside].max() < 2e-3


def test_smooth_curve_encloses_smooth_ece():
    found = predictions(n=2000)
    confidence, right = facts(found)
    curve = smooth_curve(torch.from_numpy(confidence), torch.from_numpy(right), at=torch.linspace(0, 1, 1001))
    height = ((curve.confidence - curve.accuracy).abs() * curve.density).numpy()
    area = np.trapezoid(height, curve.at.numpy())
    assert area == pytest.approx(calattn.metrics.smooth_ece(found.probs, found.labels), abs=1e-5)


def test_smooth_curve_of_a_stream():
    """Cells stand for their samples: the lines differ by less than the eye can see."""
    from calattn.metrics.smooth import SmoothGrid

    found = predictions(n=2000)
    grid = SmoothGrid.empty()
    gather([found.select(torch.arange(700)), found.select(torch.arange(700, 2000))], grid)
    confidence, right = facts(found)
    whole = smooth_curve(torch.from_numpy(confidence), torch.from_numpy(right))
    parts = smooth_curve_of(grid)
    for ours, theirs in zip(parts, whole, strict=True):
        dense = whole.samples > 5
        assert torch.allclose(ours[dense], theirs[dense], rtol=1e-3, atol=1e-4)


def test_a_calibrated_model_lies_on_the_diagonal(generator):
    """Confidences that crowd at 1, where a curve over its own places would end four points low."""
    confidence = torch.rand(200_000, generator=generator, dtype=torch.float64) ** (1 / 8)
    right = torch.rand(200_000, generator=generator, dtype=torch.float64) < confidence
    curve = smooth_curve(confidence, right, at=torch.linspace(0.5, 1, 26))
    assert float((curve.accuracy - curve.confidence).abs().max()) < 0.02
    assert float(curve.accuracy[-1]) < 0.97


def test_smooth_curve_refuses_a_bandwidth_it_cannot_draw():
    for bandwidth in (0.0, -0.1, float("nan"), 1e-5):
        with pytest.raises(ValueError, match="bandwidth"):
            report.reliability_diagram(predictions(n=50), bandwidth=bandwidth)
    report.reliability_diagram(predictions(n=50), bandwidth=None)  # smooth ECE's own


# --- confidence --------------------------------------------------------------------------------------------------------


def test_confidence_histogram():
    found = predictions()
    ax = report.confidence_histogram(found, num_bins=10, title="model").axes[0]
    right_bars, wrong_bars = ax.containers
    confidence, right = facts(found)
    edges = np.linspace(0, 1, 11)
    for bars, chosen in ((right_bars, right), (wrong_bars, ~right)):
        counts, _ = np.histogram(confidence[chosen], edges)
        assert np.allclose([bar.get_height() for bar in bars], 100 * counts / len(confidence))
    assert f"confidence {100 * confidence.mean():.1f} %, accuracy {100 * right.mean():.1f} %" in [
        t.get_text() for t in ax.texts
    ]
    uprights = [float(each.get_segments()[0][0, 0]) for each in ax.collections]
    assert uprights == pytest.approx([right.mean(), confidence.mean()], abs=1e-6)


# --- temperature -------------------------------------------------------------------------------------------------------


def test_temperature_numbers_are_those_of_scipy():
    found = scaled(n=300)
    logits = found.logits.double().numpy() / found.scale.double().numpy()[:, None]
    ece, nll = errors_at(found, [0.5, 1.0, 3.0])
    for place, temperature in enumerate((0.5, 1.0, 3.0)):
        logs = log_softmax(logits / temperature, axis=1)
        assert float(nll[place]) == pytest.approx(-logs[np.arange(300), found.labels].mean(), abs=1e-6)
        confidence, right = np.exp(logs.max(axis=1)), logs.argmax(axis=1) == found.labels.numpy()
        bins = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
        gaps = np.abs(np.bincount(bins, weights=confidence - right, minlength=15))
        assert float(ece[place]) == pytest.approx(gaps.sum() / 300, abs=1e-6)


def test_temperature_curve_marks_the_validation_temperature():
    found, held_out = predictions(0), predictions(1, sharpness=2.0)
    figure = report.temperature_curve(found, validation=held_out, title="model")
    best = best_temperature(held_out)
    for ax in figure.axes:
        curve, mark = ax.lines
        assert ax.get_legend().get_texts()[0].get_text() == f"T* = {best:.3g}"
        assert mark.get_xdata()[0] == pytest.approx(best)
        assert mark.get_ydata()[0] == pytest.approx(
            np.interp(mark.get_xdata()[0], curve.get_xdata(), curve.get_ydata())
        )
    _, nll = errors_at(found, figure.axes[1].lines[0].get_xdata().tolist())
    assert np.allclose(figure.axes[1].lines[0].get_ydata(), nll)
    assert "chosen" not in figure.axes[1].get_xlabel()
    assert "chosen on the samples shown" in report.temperature_curve(found).axes[1].get_xlabel()


def test_temperature_curves_overlay():
    both = {"a": predictions(0), "b": predictions(1)}
    figure = report.temperature_curve(both, validation={"a": predictions(2), "b": predictions(3)})
    titles = [text.get_text().split(":")[0] for text in figure.axes[0].get_legend().get_texts()]
    assert titles == ["a", "b"]
    assert len({each.get_linestyle() for each in figure.axes[0].lines if each.get_linestyle() != "None"}) == 2


def test_no_temperature_no_mark():
    """Every label on top: no temperature is best, and none is marked."""
    found = predictions(n=50)
    certain = found.replace(labels=found.logits.argmax(dim=1))
    with pytest.warns(calattn.posthoc.FitWarning):
        figure = report.temperature_curve(certain)
    assert "no T*" in figure.axes[1].get_legend().get_texts()[0].get_text()
    assert len(figure.axes[1].lines) == 1


@pytest.mark.usefixtures("untyped")
def test_temperature_curve_refuses():
    found = predictions(n=50)
    with pytest.raises(ValueError, match="one set for several predictions"):
        report.temperature_curve({"a": found, "c": found}, validation=found)
    with pytest.raises(ValueError, match="validation has 'b', which predictions has not; titles: a"):
        report.temperature_curve({"a": found}, validation={"b": found})
    with pytest.raises(ValueError, match="needs them whole"):
        report.temperature_curve([found])
    with pytest.raises(ValueError, match="nothing to show"):
        report.temperature_curve({})


# --- selection ---------------------------------------------------------------------------------------------------------


def test_risk_coverage_is_the_running_error_rate():
    found = predictions()
    ax = report.risk_coverage_curve(found).axes[0]
    confidence, right = facts(found)
    order = np.argsort(-confidence, kind="stable")
    covered = np.arange(1, len(right) + 1)
    risk = 100 * np.cumsum(~right[order]) / covered
    coverage, drawn = ax.lines[0].get_xdata(), ax.lines[0].get_ydata()
    assert np.allclose(coverage, 100 * covered[19:] / len(right))  # from twenty samples on
    assert np.allclose(drawn, risk[19:])
    assert ax.get_legend().get_texts()[0].get_text() == f"AURC {risk.mean():.2f}"


def test_risk_coverage_of_many_samples_is_thinned_to_its_end():
    found = predictions(n=3000)
    curve = report.risk_coverage_curve({"all": [found, found]}).axes[0].lines[0]
    assert len(curve.get_xdata()) <= 1000
    assert curve.get_xdata()[-1] == 100
    assert curve.get_ydata()[-1] == pytest.approx(100 * (1 - facts(found)[1].mean()))


def test_accuracy_above_confidence():
    found = predictions()
    ax = report.accuracy_above_confidence(found, at=0.7).axes[0]
    confidence, right = facts(found)
    threshold, _ = line(ax, "accuracy of the kept")
    for name, expected in (
        ("accuracy of the kept", [right[confidence >= t].mean() for t in threshold]),
        ("their mean confidence", [confidence[confidence >= t].mean() for t in threshold]),
        ("share kept", [(confidence >= t).mean() for t in threshold]),
    ):
        assert np.allclose(line(ax, name)[1], 100 * np.array(expected), atol=1e-4)
    assert (confidence >= threshold[-1]).sum() >= 20 > (confidence >= threshold[-1] + 0.002).sum()
    kept = confidence >= 0.7
    sentence = f"at 0.7 or above: {100 * kept.mean():.1f} % kept, accuracy {100 * right[kept].mean():.1f} %"
    assert sentence in [text.get_text() for text in ax.texts]


def test_a_stated_confidence_is_at_its_own_threshold():
    """A float32 0.9 is a hair below 0.9, and means 0.9."""
    probs = torch.tensor([[0.9, 0.1]] * 6 + [[0.6, 0.4]] * 4)
    found = report.selection(
        calattn.Predictions.from_probs(probs, torch.zeros(10, dtype=torch.int64)),
        torch.tensor([0.9, 0.9001], dtype=torch.float64),
    )
    assert found.kept.tolist() == [0.6, 0.0]
    assert found.accuracy[0] == 1.0
    assert torch.isnan(found.accuracy[1])


# --- scale -------------------------------------------------------------------------------------------------------------


def test_scale_histogram():
    found = scaled()
    ax = report.scale_histogram(found, num_bins=12).axes[0]
    values, edges, _ = ax.patches[0].get_data()
    counts, expected = np.histogram(found.scale.double().numpy(), bins=12)
    assert np.allclose(values, 100 * counts / len(found))
    assert np.allclose(edges, expected)
    assert any(f"mean {found.scale.mean():.3g}" in text.get_text() for text in ax.get_legend().get_texts())


def test_scale_against_correctness():
    found = scaled()
    above, below = report.scale_against_correctness(found, num_groups=6).axes
    _, right = facts(found)
    scale = found.scale.double().numpy()
    assert above.texts[0].get_text() == f"AUROC of s for errors {roc_auc_score(~right, scale):.3f}"
    order = np.array_split(np.argsort(scale, kind="stable"), 6)
    assert np.allclose(line(below, "accuracy")[1], [100 * right[part].mean() for part in order])
    assert np.allclose(line(below, "accuracy")[0], [scale[part].mean() for part in order])
    density, edges, _ = above.patches[1].get_data()  # the outline of the right ones
    assert np.allclose(density, np.histogram(scale[right], bins=edges, density=True)[0])


def test_scale_of_a_stream():
    found = scaled()
    whole, parts = scales_of(found), scales_of([found.select(torch.arange(100)), found.select(torch.arange(100, 600))])
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))
    assert [len(group.scale) for group in scale_groups(parts)] == [60] * 10


@pytest.mark.parametrize("draw", [report.scale_histogram, report.scale_against_correctness])
def test_no_scale_is_said(draw):
    with pytest.raises(ValueError, match="has no scale: only a CalAttn model"):
        draw(predictions())


# --- training ----------------------------------------------------------------------------------------------------------


def log_rows(*, head: bool = True) -> list[dict[str, object]]:
    from calattn.engine.log import measure

    rows: list[dict[str, object]] = [{"event": "start"}]
    for epoch in range(1, 5):
        found = scaled(epoch) if head else predictions(epoch).replace(scale=torch.ones(600))
        train = {"loss": 2.0 / epoch, "accuracy": 0.2 * epoch}
        rows.append({"event": "epoch", "epoch": epoch, "train": train, "validation": measure(found)})
    return json.loads(json.dumps(rows))


def test_training_dynamics():
    rows = log_rows()
    figure = report.training_dynamics(rows, title="run")
    loss, accuracy, ece, scale = figure.axes
    assert np.allclose(line(loss, "training loss"), [[1, 2, 3, 4], [2, 1, 2 / 3, 0.5]])
    assert np.allclose(line(accuracy, "training")[1], [20, 40, 60, 80])
    errors = [100 * row["validation"]["ece"] for row in rows[1:]]
    assert np.allclose(line(ece, "validation")[1], errors)
    assert line(ece, f"lowest: epoch {1 + int(np.argmin(errors))}")[1] == pytest.approx(min(errors))
    assert np.allclose(line(scale, "mean")[1], [scaled(epoch).scale.double().mean() for epoch in range(1, 5)])
    band = scale.collections[0].get_paths()[0].vertices[:, 1]
    quantiles = [np.quantile(scaled(epoch).scale.double().numpy(), 0.95) for epoch in range(1, 5)]
    assert band.max() == pytest.approx(max(quantiles), abs=1e-5)


def test_training_without_a_head_has_no_scale_panel():
    assert len(report.training_dynamics(log_rows(head=False)).axes) == 3


def test_a_number_that_was_not_finite_leaves_a_gap():
    rows = log_rows()
    rows[2]["train"]["loss"] = None  # type: ignore[index]
    assert np.isnan(line(report.training_dynamics(rows).axes[0], "training loss")[1]).tolist() == [0, 1, 0, 0]


def test_a_log_without_epochs_is_refused():
    with pytest.raises(ValueError, match="has 1 rows and none of an epoch"):
        report.training_dynamics([{"event": "start"}])


# --- all of them -------------------------------------------------------------------------------------------------------

FIGURES = {
    "reliability": lambda **options: report.reliability_diagram(predictions(n=100), **options),
    "confidence": lambda **options: report.confidence_histogram(predictions(n=100), **options),
    "temperature": lambda **options: report.temperature_curve(predictions(n=100), **options),
    "risk": lambda **options: report.risk_coverage_curve(predictions(n=100), **options),
    "accuracy": lambda **options: report.accuracy_above_confidence(predictions(n=100), **options),
    "scale": lambda **options: report.scale_histogram(scaled(n=100), **options),
    "correctness": lambda **options: report.scale_against_correctness(scaled(n=100), **options),
    "training": lambda **options: report.training_dynamics(log_rows(), **options),
}


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
@pytest.mark.filterwarnings("error:.*layout")
def test_given_axes_are_drawn_in_and_nothing_overlaps(draw, tmp_path):
    """Into one of two places; the other stays empty, the title is there, and no two texts of the page touch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    left, right = figure.subplots(1, 2)
    assert draw(ax=right, title="a title") is figure
    assert right.get_title() == "a title"
    assert not left.has_data()
    alone = draw(title="a title")
    report.save_figure(alone, tmp_path / "a.png")
    alone.draw_without_rendering()  # extents at the figure's own resolution
    boxes = [box for ax in alone.axes for box in text_boxes(ax)]
    touching = [(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :] if a[1].overlaps(b[1])]
    assert not touching
    page = alone.bbox
    assert all(page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1 for _, box in boxes)


def text_boxes(ax) -> list:
    """Name and place of every piece of text of some axes and of what lies in them."""
    legend = ax.get_legend()
    texts = [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts, *(legend.get_texts() if legend else [])]
    x_labels = [] if not ax.xaxis.get_tick_params()["labelbottom"] else ax.get_xticklabels()
    low, high = sorted(ax.get_ylim())
    y_labels = [label for label in ax.get_yticklabels() if low <= label.get_position()[1] <= high]
    low, high = sorted(ax.get_xlim())
    x_labels = [label for label in x_labels if low <= label.get_position()[0] <= high]
    found = [(t.get_text(), t.get_window_extent()) for t in (*texts, *x_labels, *y_labels) if t.get_text().strip()]
    return found + [box for child in ax.child_axes for box in text_boxes(child)]


@pytest.mark.usefixtures("untyped")
def test_what_is_no_prediction_is_refused():
    with pytest.raises(ValueError, match=r"must be calattn\.Predictions, or blocks of them.*got Tensor"):
        report.confidence_histogram(torch.rand(5, 3))
    with pytest.raises(ValueError, match="no blocks"):
        report.risk_coverage_curve([])
    with pytest.raises(ValueError, match="nothing to draw"):
        report.accuracy_above_confidence({})
    with pytest.raises(ValueError, match="num_bins must be a positive integer, got 0"):
        report.confidence_histogram(predictions(), num_bins=0)


def test_style_sheet_is_matplotlibs_and_the_figures_use_it():
    import matplotlib
    import matplotlib.style

    with matplotlib.style.context(report.STYLE):
        used = dict(matplotlib.rcParams)
    with report.figure_style():
        ours = dict(matplotlib.rcParams)
    named = [text.split(":")[0] for text in report.STYLE.read_text().splitlines() if text and not text.startswith("#")]
    assert len(named) > 10
    assert all(used[name] == ours[name] for name in named)
    assert ours["axes.prop_cycle"].by_key()["color"][:2] == ["#0072B2", "#D55E00"]
    assert ours["axes.spines.top"] is False


def test_matplotlib_waits_for_the_first_figure():
    code = "import sys, calattn.report; assert 'matplotlib' not in sys.modules; calattn.report.STYLE.read_text()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_panels_need_a_grid():
    from matplotlib.figure import Figure

    ax = Figure().add_axes((0.1, 0.1, 0.8, 0.8))
    with pytest.raises(ValueError, match="must come from subplots"):
        report.temperature_curve(predictions(n=50), ax=ax)


def test_scale_that_does_not_vary():
    report.scale_histogram(predictions().replace(scale=torch.ones(600)))
    report.scale_against_correctness(predictions().replace(scale=torch.ones(600)))
