"""Reliability diagrams draw the sums that ECE is made of, and chance as it is."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve

import calattn
from calattn.report.reliability import bin_sums, consistency, reliability_diagram, reliability_diagrams, save_figure
from tests.cli_runner import predictions


def by_hand(found: calattn.Predictions, num_bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count, accuracy and mean confidence of each bin (lo, hi], with numpy alone."""
    confidence, top = found.probs.max(dim=1)
    confidence, right = confidence.double().numpy(), (top == found.labels).numpy()
    place = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    count = np.bincount(place, minlength=num_bins)
    safe = np.maximum(count, 1)
    return (
        count,
        np.bincount(place, weights=right, minlength=num_bins) / safe,
        np.bincount(place, weights=confidence, minlength=num_bins) / safe,
    )


def test_bars_are_the_bins():
    found = predictions()
    figure = reliability_diagram(found, num_bins=10, title="model")
    (ax, *_) = figure.axes
    accuracy_bars, gap_bars = (container for container in ax.containers[:2])
    count, accuracy, confidence = by_hand(found, 10)
    filled = count > 0
    assert np.allclose([bar.get_height() for bar in accuracy_bars], accuracy[filled])
    tops = [bar.get_y() + bar.get_height() for bar in gap_bars]
    assert np.allclose(tops, confidence[filled], atol=1e-6)
    assert np.allclose([bar.get_x() + bar.get_width() / 2 for bar in accuracy_bars], (np.arange(10) + 0.5)[filled] / 10)
    assert ax.get_title() == "model"


def test_histogram_and_text():
    found = predictions()
    figure = reliability_diagram(found, num_bins=10)
    (below,) = figure.axes[0].child_axes
    count, *_ = by_hand(found, 10)
    assert np.allclose([bar.get_height() for bar in below.patches], 100 * count / count.sum())
    ece = calattn.metrics.ece(found.probs, found.labels, num_bins=10)
    text = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert f"ECE {100 * ece:.2f}" in text
    assert f"accuracy {100 * calattn.metrics.accuracy(found.probs, found.labels):.1f}" in text


@pytest.mark.parametrize(("binning", "strategy"), [("equal_width", "uniform"), ("equal_count", "quantile")])
def test_bins_are_those_of_scikit_learn(binning, strategy):
    found = predictions()
    confidence, top = found.probs.max(dim=1)
    accuracy, mean = calibration_curve(top == found.labels, confidence.double(), n_bins=12, strategy=strategy)
    sums = bin_sums(found, num_bins=12, binning=binning)
    filled = sums.count > 0
    assert np.allclose(sums.accuracy[filled], accuracy)
    assert np.allclose((sums.confidence / sums.count)[filled], mean, atol=1e-6)


def test_equal_counts_are_dots_at_their_mean_confidence():
    found = predictions()
    figure = reliability_diagram(found, num_bins=12, binning="equal_count")
    confidence, top = found.probs.max(dim=1)
    accuracy, mean = calibration_curve(top == found.labels, confidence.double(), n_bins=12, strategy="quantile")
    (dots,) = (line for line in figure.axes[0].lines if line.get_label() == "accuracy")
    assert np.allclose(dots.get_xdata(), mean, atol=1e-6)
    assert np.allclose(dots.get_ydata(), accuracy)
    gaps = np.array(figure.axes[0].collections[0].get_segments())
    assert np.allclose(gaps[:, :, 0], mean[:, None], atol=1e-6)
    assert np.allclose(gaps[:, 0, 1], accuracy)
    assert np.allclose(gaps[:, 1, 1], mean, atol=1e-6)
    text = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert f"AdaECE {100 * calattn.metrics.adaptive_ece(found.probs, found.labels, num_bins=12):.2f}" in text


def test_smooth_curve_is_drawn_where_samples_are_and_wider_where_more_are():
    found = predictions(n=150)
    confidence, top = (values.numpy() for values in found.probs.double().max(dim=1))
    right = top == found.labels.numpy()
    (*_, line) = reliability_diagram(found, bandwidth=0.06).axes[0].collections
    segments = np.array(line.get_segments())
    for said, hit in segments[:, 0]:
        # The place t whose kernel average of confidence is `said`, by bisection, and that of correctness there.
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            images = np.concatenate([confidence, -confidence, 2 - confidence])
            weight = np.exp(-0.5 * ((middle - images) / 0.06) ** 2).reshape(3, -1).sum(axis=0)
            low, high = (middle, high) if np.average(confidence, weights=weight) < said else (low, middle)
        assert hit == pytest.approx(np.average(right, weights=weight), abs=1e-3)
        assert weight.sum() ** 2 / (weight**2).sum() >= 19.9
    widths = np.asarray(line.get_linewidths())
    density = np.histogram(confidence, bins=np.linspace(0, 1, 6))[0]
    crowded = np.clip((segments[:, 0, 0] * 5).astype(int), 0, 4) == density.argmax()
    assert widths[crowded].mean() > widths[~crowded].mean()


def test_without_the_smooth_curve():
    with_curve, without = (reliability_diagram(predictions(), smooth=smooth).axes[0] for smooth in (True, False))
    assert len(with_curve.collections) == len(without.collections) + 2
    assert "smooth" not in [text.get_text() for text in without.get_legend().get_texts()]


def test_a_curve_of_few_samples_is_not_drawn():
    for n in (1, 5):
        drawn = reliability_diagram(predictions(n=n)).axes[0]
        assert len(drawn.collections) == len(reliability_diagram(predictions(n=n), smooth=False).axes[0].collections)


@pytest.mark.usefixtures("untyped")
def test_unknown_binning_is_refused():
    with pytest.raises(ValueError, match='binning must be "equal_width" or "equal_count", got \'width\''):
        reliability_diagram(predictions(), binning="width")


def test_a_stream_gives_the_sums_of_the_whole():
    found = predictions()
    halves = [found.select(torch.arange(250)), found.select(torch.arange(250, 600))]
    whole, parts = bin_sums(found), bin_sums(halves)
    assert torch.equal(whole.count, parts.count)
    assert torch.allclose(whole.confidence, parts.confidence)
    assert torch.equal(whole.correct, parts.correct)


def test_stated_probabilities_are_read_as_they_stand():
    """Confidences on the edges belong to the bin below; a softmax of their logarithms would push some over."""
    top = torch.arange(51, 101, dtype=torch.float64) / 100
    found = calattn.Predictions.from_probs(torch.stack([top, 1 - top], dim=1), torch.zeros(50, dtype=torch.int64))
    assert bin_sums(found, num_bins=100).count.tolist() == [0] * 50 + [1] * 50


def test_calibrated_accuracies_fall_within_the_bars_as_often_as_they_say(generator):
    inside = total = 0
    for _ in range(40):
        confidence = 0.5 + 0.5 * torch.rand(1500, generator=generator)
        right = torch.rand(1500, generator=generator) < confidence
        probs = torch.stack([confidence, 1 - confidence], dim=1)
        sums = bin_sums(calattn.Predictions.from_probs(probs, (~right).long()))
        low, high = consistency(sums, level=0.9)
        filled = sums.count > 0
        inside += int(((sums.accuracy >= low) & (sums.accuracy <= high))[filled].sum())
        total += int(filled.sum())
    # Discrete quantiles hold at least the level. A wrong level or a wrong centre falls well below or reaches 1.
    share = inside / total
    assert binomtest(inside, total, 0.9, alternative="less").pvalue > 0.001
    assert share < 0.99


def test_empty_bins_have_no_bars():
    found = calattn.Predictions.from_probs(torch.tensor([[0.95, 0.05]] * 9), torch.zeros(9, dtype=torch.int64))
    low, high = consistency(bin_sums(found, num_bins=10))
    assert torch.isnan(low[:9]).all()
    assert torch.isnan(high[:9]).all()
    assert 0 < float(low[9]) <= float(high[9]) == 1.0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_several_share_a_figure(count):
    figure = reliability_diagrams({str(i): predictions(i, n=50) for i in range(count)})
    drawn = [ax for ax in figure.axes if ax.get_title()]
    assert [ax.get_title() for ax in drawn] == [str(i) for i in range(count)]
    assert sum(ax.get_legend() is not None for ax in drawn) == 1


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="nothing to draw"):
        reliability_diagrams({})


def test_png_is_a_picture_and_equal_figures_are_equal_files(tmp_path):
    for suffix in ("png", "pdf", "svg"):
        for name in ("a", "b"):
            save_figure(reliability_diagram(predictions()), tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    with Image.open(tmp_path / "a.png") as picture:
        picture.load()
        assert min(picture.size) > 500
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 50  # not a blank page


def test_unknown_format_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf, \.svg, got '\.gif'"):
        save_figure(reliability_diagram(predictions()), tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []


def test_no_global_state():
    code = (
        "import sys, torch, matplotlib, calattn\n"
        # asking for the backend would choose one, and import pyplot
        "settings = lambda: {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'}\n"
        "before = settings()\n"
        "from calattn.report.reliability import reliability_diagram\n"
        "p = calattn.Predictions(logits=torch.randn(20, 3), labels=torch.zeros(20, dtype=torch.int64))\n"
        "reliability_diagram(p)\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert settings() == before\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PATH": "", "HOME": "/nonexistent", "MPLCONFIGDIR": "/tmp"}
    )
