"""The taught head: its formula by hand, the temperature it recovers, what the anchor promises, and bad input."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from calattn.heads import Taught
from calattn.heads.lesson import Lesson, Reading, _anchor, teach_head

KINDS = ("lowrank", "classwise", "scale")


def world(n: int, *, seed: int, shift: float = 0.0, classes: int = 4, width: int = 6) -> Reading:
    """Images whose true temperature is exp(0.5 z₀); a shift moves z₀, so that the logits promise too much."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, width, generator=g)
    z[:, 0] += shift
    logits = 3 * torch.randn(n, classes, generator=g)
    probs = (logits / (0.5 * z[:, :1]).exp()).softmax(1)
    return Reading(z, logits, probs.multinomial(1, generator=g).squeeze(1))


def nll(logits: torch.Tensor, reading: Reading) -> float:
    return float(functional.cross_entropy(logits, reading.targets))


def best_single(reading: Reading, judged: Reading) -> float:
    grid = [math.exp(step / 50) for step in range(-100, 150)]
    best = min(grid, key=lambda t: nll(reading.logits / t, reading))
    return nll(judged.logits / best, judged)


def awake(kind: str) -> Taught:
    head = Taught(3, 4, hidden=5, kind=kind)
    g = torch.Generator().manual_seed(0)
    for parameter in head.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=g))
    head.anchor.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]))
    return head


@pytest.mark.parametrize("kind", KINDS)
def test_the_formula_by_hand(kind):
    head, g = awake(kind), torch.Generator().manual_seed(1)
    z, logits = torch.randn(7, 3, generator=g), torch.randn(7, 4, generator=g)
    out = head(z, logits)
    for row in range(7):
        h = [
            0.5 * x * (1 + math.erf(x / math.sqrt(2)))
            for x in (head.fc1.weight.double() @ z[row].double() + head.fc1.bias.double()).tolist()
        ]
        read = (head.fc2.weight.double() @ torch.tensor(h, dtype=torch.float64) + head.fc2.bias.double()).tolist()
        above, below = math.log1p(math.exp(read[0])), math.log1p(math.exp(-read[0]))
        scale = math.exp(0.1 - 0.2 * below + 0.3 * above)
        gain = 0.4 + 0.5 * above
        ell = logits[row].double().tolist()
        mean = sum(ell) / 4
        offsets = [0.0] * 4 if kind == "scale" else [gain * value for value in read[1:]]
        if kind == "classwise":
            wanted = [(value - mean) / scale / math.exp(offset) for value, offset in zip(ell, offsets, strict=True)]
        else:
            wanted = [value / scale + offset for value, offset in zip(ell, offsets, strict=True)]
        assert float(out.scale[row]) == pytest.approx(scale, rel=1e-5)
        ours = out.calibrated_logits[row].double().softmax(0)
        theirs = torch.tensor(wanted, dtype=torch.float64).softmax(0)
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_the_scale_rises_with_what_the_head_reads():
    head = Taught(1, 2, hidden=1, kind="scale")
    head.fc1.weight.fill_(1.0)
    head.fc2.weight.fill_(1.0)
    head.anchor.copy_(torch.tensor([0.0, 0.2, 0.1, 0.0, 0.0]))
    scale = head(torch.linspace(0, 20, 100).unsqueeze(1), torch.zeros(100, 2)).scale
    assert (scale.diff() > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_known_temperature_per_image_is_recovered(kind):
    lesson = Lesson(kind=kind, hidden=32, steps=400)
    head = teach_head(world(20_000, seed=0), world(2_000, seed=1), world(2_000, seed=2, shift=1.5), lesson)
    for seed, shift in ((3, 0.0), (4, 1.5)):
        judged = world(20_000, seed=seed, shift=shift)
        truth = nll(judged.logits / (0.5 * judged.features[:, :1]).exp(), judged)
        ours = nll(head(judged.features, judged.logits).calibrated_logits, judged)
        alone = best_single(judged, judged)  # the best of any single temperature, chosen on these very images
        assert ours < truth + 0.15 * (alone - truth), (kind, shift, truth, ours, alone)


def test_only_the_scale_keeps_every_prediction():
    lessons = {kind: Lesson(kind=kind, hidden=8, steps=300) for kind in KINDS}
    parts = world(3_000, seed=0), world(300, seed=1), world(300, seed=2, shift=1.0)
    judged = world(2_000, seed=3)
    kept = {}
    for kind, lesson in lessons.items():
        out = teach_head(*parts, lesson)(judged.features, judged.logits)
        kept[kind] = bool((out.calibrated_logits.argmax(1) == judged.logits.argmax(1)).all())
        assert (out.offset is None) == (kind == "scale")
    assert kept["scale"]
    assert not kept["lowrank"]


def test_what_clean_images_may_lose_is_kept():
    """Clean and shifted images ask for unlike temperatures and look the same to the head: it has to choose."""
    g = torch.Generator().manual_seed(0)

    def blind(n: int, temperature: float) -> Reading:
        logits = 3 * torch.randn(n, 4, generator=g)
        truth = (logits / temperature).softmax(1).multinomial(1, generator=g).squeeze(1)
        return Reading(torch.randn(n, 6, generator=g), logits, truth)

    parts = blind(4_000, 2.0), blind(2_000, 1.0), blind(2_000, 4.0)

    def losses(tolerance: float) -> tuple[float, float]:
        head = teach_head(*parts, Lesson(kind="scale", hidden=8, steps=200, tolerance=tolerance))
        clean, shifted = (nll(head(r.features, r.logits).calibrated_logits, r) for r in parts[1:])
        return clean, shifted

    best, _ = losses(0.0)
    clean, shifted = zip(*(losses(tolerance) for tolerance in (0.0, 0.005, 0.05)), strict=True)
    for lost, allowed in zip(clean, (0.0, 0.005, 0.05), strict=True):
        assert lost <= best + max(allowed * best, 0.0005) + 1e-3
    assert shifted[0] > shifted[1] > shifted[2]
    assert clean[0] <= clean[1] <= clean[2]


def test_the_same_seed_gives_the_same_bits():
    parts = world(1_000, seed=0), world(100, seed=1), world(100, seed=2)
    lesson = Lesson(hidden=8, steps=50)
    first, again, other = (teach_head(*parts, lesson, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc1.weight"], other["fc1.weight"])


def test_soft_labels_of_one_class_are_that_class():
    hard = world(2_000, seed=0), world(200, seed=1), world(200, seed=2)
    soft = [Reading(r.features, r.logits, functional.one_hot(r.targets, 4).float()) for r in hard]
    lesson = Lesson(hidden=8, steps=100)
    a, b = teach_head(*hard, lesson), teach_head(*soft, lesson)
    z, logits = world(50, seed=3).features, world(50, seed=3).logits
    assert torch.allclose(a(z, logits).calibrated_logits, b(z, logits).calibrated_logits, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_three_held_out_images_are_few_but_enough_to_stay_finite(kind):
    head = teach_head(world(500, seed=0), world(3, seed=1), world(3, seed=2), Lesson(kind=kind, hidden=8, steps=50))
    out = head(*(getattr(world(100, seed=3, shift=3.0), part) for part in ("features", "logits")))
    assert torch.isfinite(out.calibrated_logits).all()
    assert head.is_taught
    assert float(out.scale.min()) > 0.1
    assert float(out.scale.max()) < 20


@pytest.mark.parametrize("seed", range(3))
def test_shifted_images_far_from_all_others_are_no_trouble(seed):
    """There exponentials overflow at a step of the anchor's fit that is too long."""
    generator = torch.Generator().manual_seed(seed)
    weights = 10 * torch.randn(6, 10, generator=generator)

    def read(count: int, spread: float = 1.0) -> Reading:
        features = spread * torch.randn(count, 6, generator=generator)
        return Reading(features, features @ weights, torch.randint(10, (count,), generator=generator))

    head = teach_head(read(384), read(48), read(96, spread=30.0), Lesson(steps=20, batch_size=64), seed=seed)
    assert torch.isfinite(head.anchor).all()


@pytest.mark.parametrize("kind", ["lowrank", "classwise"])
def test_a_class_term_that_overflows_leaves_the_temperature(kind):
    """One held-out image whose class terms are beyond measure must not stop the fit of the others' temperature."""
    clean, shifted = world(400, seed=1), world(400, seed=2, shift=1.0)
    clean, shifted = (Reading(each.features, 20 * each.logits, each.targets) for each in (clean, shifted))
    clean.features[0, 1] = -1e30
    head = Taught(6, 4, hidden=5, kind=kind)
    g = torch.Generator().manual_seed(0)
    for parameter in head.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=g))
    head.fc2.weight[0] = 0.0
    _anchor(head, clean, shifted, Lesson(kind=kind))
    rest = Reading(clean.features[1:], clean.logits[1:], clean.targets[1:])
    assert nll(head(rest.features, rest.logits).calibrated_logits, rest) < best_single(rest, rest) + 0.05
    assert nll(rest.logits, rest) > 2 * best_single(rest, rest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: Reading(r.features.index_fill(0, torch.tensor([2]), math.nan), r.logits, r.targets), "features of clean"),
        (lambda r: Reading(r.features, r.logits.index_fill(0, torch.tensor([0]), math.inf), r.targets), "logits of clean row 0"),
        (lambda r: Reading(r.features[:, :3], r.logits, r.targets), "clean has features"),
        (lambda r: Reading(r.features[:0], r.logits[:0], r.targets[:0]), "clean holds no image"),
    ],
)  # fmt: skip
def test_bad_readings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        teach_head(world(50, seed=0), change(world(20, seed=1)), world(20, seed=2), Lesson(steps=2))


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"hidden": -1}, {"tolerance": 2.0}, {"learning_rate": 0.0}, {"dropout": 1.0}, {"readings": 0}],
)
def test_bad_lessons_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Lesson(**wrong)
