"""What every calibrator promises, whichever it is: each registered name runs through each test."""

import dataclasses
import os
import warnings

import pytest
import torch
from safetensors.torch import save_file

from calattn import Predictions
from calattn.posthoc import (
    CALIBRATORS,
    AbsentClassWarning,
    Calibrator,
    FitWarning,
    FrozenCalAttn,
    NotFittedError,
    SameDataWarning,
    TemperatureScaling,
    VectorScaling,
    load,
)

QUICK = {"sats": {"epochs": 2, "hidden": 8}, "frozen_calattn": {"epochs": 2, "hidden": 8}}
SCALES = {"temperature", "temperature_ece", "sats", "frozen_calattn"}
NAMES = sorted(set(CALIBRATORS) - {"venn_abers"})  # which is for two classes


def build(name: str, **options) -> Calibrator:
    return CALIBRATORS[name](**QUICK.get(name, {}), **options)


def made_up(seed: int, n: int = 400, c: int = 4) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, c, generator=g)
    labels = torch.multinomial((logits / 1.7).softmax(dim=1), 1, generator=g).squeeze(1)
    return Predictions(
        logits=logits,
        labels=labels,
        features=torch.randn(n, 6, generator=g),
        indices=torch.arange(n) + 10,
        scale=0.5 + torch.rand(n, generator=g),
        class_names=tuple("abcdefgh"[:c]),
        split="val",
        spec_hash="f00",
    )


def same(first: Calibrator, second: Calibrator) -> bool:
    def flat(calibrator):
        for name in calibrator.learned_names():
            value = getattr(calibrator, name)
            yield from sorted(value.items()) if isinstance(value, dict) else [(name, value)]

    pairs = list(zip(flat(first), flat(second), strict=True))
    return all(a == b and (torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize("name", NAMES)
def test_unfitted_raises(name, tmp_path):
    calibrator = build(name)
    with pytest.raises(NotFittedError, match=r"not fitted: call fit\(predictions\) first"):
        calibrator(made_up(0))
    with pytest.raises(NotFittedError):
        calibrator.save(tmp_path / "never")
    with pytest.raises(ValueError, match="has no num_classes_"):
        _ = calibrator.num_classes_
    assert not hasattr(calibrator, "num_classes_")


@pytest.mark.parametrize("name", NAMES)
def test_another_number_of_classes_raises_and_names_both(name):
    calibrator = build(name).fit(made_up(0))
    for c in (3, 5):
        with pytest.raises(ValueError, match=f"fitted on 4 classes, but predictions has {c}"):
            calibrator(made_up(1, c=c))


@pytest.mark.parametrize("name", NAMES)
def test_keeps_everything_but_logits_and_scale(name):
    new = made_up(1)
    out = build(name).fit(made_up(0))(new)
    for field in dataclasses.fields(Predictions):
        before, after = getattr(new, field.name), getattr(out, field.name)
        if field.name == "logits":
            assert torch.equal(before, after) == (name in SCALES)
        elif field.name == "scale":
            assert (after is None) == (name not in SCALES)
        elif field.name == "stated_probs":
            assert (after is not None) == (name in {"isotonic", "histogram"})
        else:
            assert torch.equal(before, after) if isinstance(before, torch.Tensor) else before == after


@pytest.mark.parametrize("name", NAMES)
def test_reads_calibrated_logits(name):
    """CalAttn + calibrator composes: a scale, and logits divided by that scale beforehand, are the same input."""
    held_out, new = made_up(0), made_up(1)

    def divided(p):
        return p.replace(logits=p.calibrated_logits, scale=None)

    a = build(name).fit(held_out)(new).probs
    b = build(name).fit(divided(held_out))(divided(new)).probs
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_save_and_load_are_bit_equal(name, tmp_path):
    calibrator, new = build(name).fit(made_up(0)), made_up(1)
    calibrator.save(tmp_path / "it.safetensors")
    again = load(tmp_path / "it.safetensors")
    assert type(again) is type(calibrator)
    assert again.options() == calibrator.options()
    assert same(again, calibrator)
    assert torch.equal(again(new).calibrated_logits, calibrator(new).calibrated_logits)
    assert os.listdir(tmp_path) == ["it.safetensors"]


@pytest.mark.parametrize("name", NAMES)
def test_fitting_twice_is_bit_equal_and_leaves_the_global_generator_alone(name):
    options = {"generator": torch.Generator().manual_seed(5)} if name in ("sats", "frozen_calattn") else {}
    state = torch.get_rng_state()
    first = build(name, **options).fit(made_up(0))
    if options:
        options = {"generator": torch.Generator().manual_seed(5)}
    torch.rand(1)
    assert same(build(name, **options).fit(made_up(0)), first)
    torch.set_rng_state(state)
    build(name).fit(made_up(0))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["sats", "frozen_calattn"])
def test_the_generator_matters(name):
    fits = [build(name, generator=torch.Generator().manual_seed(k)).fit(made_up(0)) for k in (1, 2)]
    assert not same(*fits)


@pytest.mark.parametrize("name", NAMES)
def test_same_split_warns(name):
    """temperature_scaling #29, #37: users fitted and tested on one split, and could not tell."""
    held_out = made_up(0)
    calibrator = build(name).fit(held_out)
    with pytest.warns(SameDataWarning, match="applied to the predictions it was fitted on"):
        calibrator(held_out)
    calibrator(made_up(1))  # another split does not: pytest's configuration turns the warning into an error


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_without_labels(name):
    calibrator, new = build(name).fit(made_up(0)), made_up(1)
    got = calibrator.predict_proba(new.logits, scale=new.scale, features=new.features)
    assert torch.equal(got, calibrator(new).probs)
    arrays = {"scale": new.scale.numpy(), "features": new.features.numpy()}
    assert torch.equal(calibrator.predict_proba(new.logits.numpy(), **arrays), got)
    bare = new.replace(scale=None)
    assert torch.equal(calibrator.predict_proba(new.logits, features=new.features), calibrator(bare).probs)


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_without_labels_never_look_like_the_fitting_split(name):
    """The label that stands for the unknown ones is 0: a split of class 0 alone has the same fingerprint."""
    p = made_up(0)
    p = p.replace(labels=torch.zeros_like(p.labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        calibrator = build(name).fit(p)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrator.predict_proba(p.logits, scale=p.scale, features=p.features)


def test_probabilities_without_labels_are_checked():
    with pytest.raises(NotFittedError, match="is not fitted"):
        TemperatureScaling().predict_proba(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="fitted on 4 classes, but predictions has 3"):
        TemperatureScaling().fit(made_up(0)).predict_proba(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"logits\[1, 0\] is nan"):
        TemperatureScaling().fit(made_up(0)).predict_proba(torch.tensor([[0.0] * 4, [torch.nan] * 4]))
    with pytest.raises(ValueError, match=r"predict_proba\(\.\.\., features="):
        build("frozen_calattn").fit(made_up(0)).predict_proba(torch.zeros(2, 4))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", NAMES)
def test_anything_but_predictions_raises_with_the_remedy(name):
    p = made_up(0)
    calibrator = build(name)
    remedy = r"predictions must be calattn\.Predictions; build it with Predictions\(logits=…, labels=…\) or read_pred"
    for given in ((p.logits,), (p.logits.numpy(),), (p, p.labels), (None,)):
        with pytest.raises(ValueError, match=remedy):
            calibrator.fit(*given)
    calibrator.fit(p)
    for given in (p.logits, p.logits.numpy()):
        with pytest.raises(ValueError, match=remedy):
            calibrator(given)


@pytest.mark.parametrize("name", NAMES)
def test_repr_tells_what_was_learned(name):
    calibrator = build(name)
    unfitted = repr(calibrator)
    assert "_=" not in unfitted
    text = repr(calibrator.fit(made_up(0)))
    assert text.startswith(unfitted[:-1] + ", num_classes_=4, ")
    for learned in set(calibrator.learned_names()) - {"fitted_on_"}:
        assert f"{learned}=" in text
    assert calibrator.fitted_on_ not in text
    assert len(text) < 400
    assert "tensor(" not in text


def test_save_replaces_a_file(tmp_path):
    TemperatureScaling().fit(made_up(0)).save(tmp_path / "it")
    VectorScaling().fit(made_up(0)).save(tmp_path / "it")
    assert isinstance(load(tmp_path / "it"), VectorScaling)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_logits(name):
    p = made_up(0)
    half = Predictions(logits=p.logits.half(), labels=p.labels, features=p.features)
    new = Predictions(logits=made_up(1).logits.half(), labels=made_up(1).labels, features=made_up(1).features)
    out = build(name).fit(half)(new)
    assert out.logits.dtype == torch.float32
    assert torch.isfinite(out.probs).all()


@pytest.mark.parametrize("name", NAMES)
def test_double_precision_logits(name):
    p, q = made_up(0), made_up(1)
    fit = build(name).fit(p.replace(logits=p.logits.double()))
    out = fit(q.replace(logits=q.logits.double()))
    assert out.logits.dtype == torch.float64
    torch.testing.assert_close(out.probs.float(), fit(q).probs, atol=1e-5, rtol=1e-4)


def test_a_failing_refit_leaves_the_calibrator_as_it_was():
    calibrator = FrozenCalAttn(epochs=1, hidden=4).fit(made_up(0))
    before = calibrator(made_up(1)).scale
    with pytest.raises(ValueError, match="features"):
        calibrator.fit(made_up(2).replace(features=None))
    assert torch.equal(calibrator(made_up(1)).scale, before)


def test_load_of_another_class_raises(tmp_path):
    TemperatureScaling().fit(made_up(0)).save(tmp_path / "ts")
    with pytest.raises(ValueError, match="holds a TemperatureScaling, not a VectorScaling"):
        VectorScaling.load(tmp_path / "ts")
    assert TemperatureScaling.load(tmp_path / "ts").num_classes_ == 4


def test_foreign_files_raise(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="a safetensors file of something else"):
        load(tmp_path / "model.safetensors")
    with pytest.raises(FileNotFoundError, match="no calibrator file at"):
        load(tmp_path / "nothing")


def test_an_interrupted_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "ts"
    TemperatureScaling().fit(made_up(0)).save(path)
    before = path.read_bytes()

    def dies(_, partial, **__):
        partial.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("calattn.posthoc.files.save_file", dies)
    with pytest.raises(OSError, match="disk full"):
        TemperatureScaling().fit(made_up(1)).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["ts"]


def test_unregistered_class_cannot_be_saved(tmp_path):
    class Mine(TemperatureScaling):
        pass

    with pytest.raises(ValueError, match="Mine is not registered; add it"):
        Mine().fit(made_up(0)).save(tmp_path / "mine")


@pytest.mark.parametrize("name", ["vector", "matrix", "dirichlet", "sats"])
def test_minus_infinity_where_it_has_no_meaning_raises_with_the_remedy(name):
    p = made_up(0)
    logits = p.logits.clone()
    logits[7, (p.labels[7] + 1) % 4] = -torch.inf
    with pytest.raises(ValueError, match=r"logits\[7\] has a −inf entry.*from_probs\(\.\.\., floor=1e-6\)"):
        build(name).fit(p.replace(logits=logits))


@pytest.mark.parametrize("name", ["temperature", "temperature_ece", "frozen_calattn", "isotonic", "histogram"])
def test_minus_infinity_elsewhere_means_probability_zero(name):
    p, new = made_up(0), made_up(1)

    def with_zeros(q):
        logits = q.logits.clone()
        logits[::3].scatter_(1, ((q.labels[::3] + 1) % 4).unsqueeze(1), -torch.inf)
        return q.replace(logits=logits)

    calibrator = build(name).fit(with_zeros(p))
    out = calibrator(with_zeros(new)).probs
    assert torch.isfinite(out).all()
    # A logit far below all others is the same thing, and reaches the same fit.
    far = with_zeros(p)
    other = build(name).fit(far.replace(logits=far.logits.clamp_min(-500.0)))
    torch.testing.assert_close(out, other(with_zeros(new)).probs, atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", ["temperature", "frozen_calattn"])
def test_a_label_of_probability_zero_raises_with_the_remedy(name):
    p = made_up(0)
    logits = p.logits.scatter(1, p.labels.unsqueeze(1), -torch.inf)
    with pytest.raises(ValueError, match=r"probability 0.*from_probs\(\.\.\., floor=1e-6\)"):
        build(name).fit(p.replace(logits=logits))


@pytest.mark.parametrize("name", NAMES)
def test_a_class_without_samples_is_named_by_those_that_learn_by_class(name):
    p = made_up(0)
    without = p.replace(labels=torch.where(p.labels == 3, 0, p.labels))
    by_class = name not in SCALES | {"ensemble"}
    for split, expected in ((p, False), (without, by_class)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            build(name).fit(split)
        found = [each for each in caught if each.category is AbsentClassWarning]
        assert len(found) == expected
        assert all("1 of the 4 classes (d) has no sample" in str(each.message) for each in found)


@pytest.mark.parametrize("name", NAMES)
def test_two_classes_and_a_missing_class(name):
    g = torch.Generator().manual_seed(3)
    for c, labels in ((2, torch.arange(60) % 2), (5, torch.arange(60) % 3)):
        p = Predictions(logits=torch.randn(60, c, generator=g), labels=labels, features=torch.randn(60, 2, generator=g))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # a class that never occurs pushes its offset to −∞
            out = build(name).fit(p)(p.replace(logits=p.logits + 0.1 * torch.randn(60, c, generator=g)))
        torch.testing.assert_close(out.probs.sum(dim=1), torch.ones(60))
