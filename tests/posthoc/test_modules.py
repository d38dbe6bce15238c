"""Every fitted calibrator as a part of a network: the same numbers, in any graph, with a state dict."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import calattn
from calattn.posthoc import (
    SATS,
    FrozenCalAttn,
    NotFittedError,
    TemperatureScaling,
)
from tests.posthoc.test_protocol import NAMES, build, made_up

SMOOTH = [name for name in NAMES if name not in ("isotonic", "histogram")]


@pytest.fixture(scope="module")
def fitted():
    return {name: build(name).fit(made_up(0)) for name in NAMES}


def inputs(name, p):
    return (p.calibrated_logits, p.features) if name == "frozen_calattn" else (p.calibrated_logits,)


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_the_calibrator_says(fitted, name):
    new = made_up(1, n=2000)
    module, want = fitted[name].module(), fitted[name](new)
    found = module(*inputs(name, new))
    assert not any(p.requires_grad for p in module.parameters()), "an optimiser leaves it alone"
    torch.testing.assert_close(found.softmax(dim=1), want.probs, rtol=1e-5, atol=1e-6)
    features = {"features": new.features} if name == "frozen_calattn" else {}
    torch.testing.assert_close(
        found.softmax(dim=1), fitted[name].predict_proba(new.logits, scale=new.scale, **features), rtol=1e-5, atol=1e-6
    )
    if name in SMOOTH:
        torch.testing.assert_close(found, want.calibrated_logits, rtol=1e-5, atol=1e-5)


def test_by_plain_torch(fitted):
    logits = made_up(2).calibrated_logits
    it = fitted["temperature"]
    torch.testing.assert_close(it.module()(logits), logits / it.temperature_)
    for name in ("vector", "structured_matrix"):
        it = fitted[name]
        assert it.share_ > 0 or name == "vector"
        logs = ((1 - it.share_) * (logits / it.temperature_).softmax(1) + it.share_ / 4).log()
        weight = it.weight_.float()
        want = (logs * weight if weight.ndim == 1 else logs @ weight.T) + it.bias_.float()
        torch.testing.assert_close(it.module()(logits), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients(fitted, name):
    """Against finite differences."""
    p = made_up(3, n=4)
    module = fitted[name].module()
    logits = p.calibrated_logits.clone().requires_grad_()
    direction = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    ahead = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    rest = inputs(name, p)[1:]
    ((module(logits, *rest) * direction).sum()).backward()
    step = 1e-2
    with torch.no_grad():
        up, down = (module(logits + sign * step * ahead, *rest) for sign in (1, -1))
    want = ((up - down) * direction).sum() / (2 * step)
    torch.testing.assert_close((logits.grad * ahead).sum(), want, rtol=1e-2, atol=1e-3)


@pytest.mark.filterwarnings("ignore::calattn.posthoc.FitWarning")  # T = 2 is a bound, and as good as another T here
def test_behind_an_attached_model():
    """`predict`, `fit`, and back into the model: its own temperatures times the fitted one."""
    torch.manual_seed(0)
    model = calattn.attach(nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3)))
    nn.init.normal_(model.head.mlp.fc2.weight)
    images, labels = torch.randn(60, 3, 2, 2), torch.arange(60) % 3
    scaling = TemperatureScaling(bounds=(0.5, 2.0)).fit(calattn.predict(model, [(images, labels)]))
    out = model.output(images)
    want = out.logits / (out.scale[:, None] * scaling.temperature_)
    torch.testing.assert_close(nn.Sequential(model, scaling.module())(images), want)
    frozen = FrozenCalAttn(epochs=1, hidden=4).fit(calattn.predict(model, [(images, labels)]))
    found = frozen.module()(out.calibrated_logits, out.features).softmax(dim=1)
    want = frozen.predict_proba(out.logits, scale=out.scale, features=out.features)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_dict_carries_what_was_learned(fitted, name, tmp_path):
    source, other = fitted[name], build(name).fit(made_up(5))
    module = other.module()
    if name == "isotonic":  # as many knots as the split gave: of another fit, another shape
        module = copy.deepcopy(source.module())
        for buffer in module.buffers():
            buffer.zero_()
    torch.save(source.module().state_dict(), tmp_path / "state.pt")
    module.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    new = inputs(name, made_up(1))
    assert torch.equal(module(*new), source.module()(*new))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("untyped")
def test_in_one_graph(fitted, name):
    torch._dynamo.reset()  # else the graphs of the other modules count against the recompile limit
    module, new = fitted[name].module(), inputs(name, made_up(1))
    found = torch.compile(module, fullgraph=True, backend="aot_eager")(*new)
    torch.testing.assert_close(found, module(*new))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("untyped")
def test_exported(fitted, name):
    module = fitted[name].module()
    shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs(name, made_up(1)))
    program = torch.export.export(module, inputs(name, made_up(1, n=5)), dynamic_shapes=shapes)
    new = inputs(name, made_up(2, n=9))
    torch.testing.assert_close(program.module()(*new), module(*new))


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_and_autocast_end_in_float32(fitted, name):
    module, new = fitted[name].module(), inputs(name, made_up(1))
    half = [values.bfloat16() for values in new]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module(*half)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, module(*[values.float() for values in half]))


def test_features_are_asked_for(fitted):
    with pytest.raises(ValueError, match=r"reads features: call module\(logits, features\)"):
        nn.Sequential(nn.Linear(5, 4), fitted["frozen_calattn"].module())(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="was fitted on 6 inputs, got 5"):
        fitted["frozen_calattn"].module()(torch.zeros(2, 4), torch.zeros(2, 5))


def test_sats_on_logits_and_features():
    p, new = made_up(0), made_up(1)
    sats = SATS(inputs="logits+features", epochs=1, hidden=4).fit(p)
    found = sats.module()(new.calibrated_logits, new.features)
    torch.testing.assert_close(found, sats(new).calibrated_logits, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("untyped")
def test_what_does_not_fit():
    scaling = TemperatureScaling()
    with pytest.raises(NotFittedError, match="call fit"):
        scaling.module()
    module = scaling.fit(made_up(0)).module()
    with pytest.raises(ValueError, match=r"logits must have shape \[b, 4\], as fitted, got \[2, 3\]"):
        module(torch.zeros(2, 3))


def test_a_calibrator_without_a_module():
    class Mine(TemperatureScaling):
        _module = calattn.posthoc.Calibrator._module

    with pytest.raises(ValueError, match=r"Mine has no module; call Mine.predict_proba\(logits\) behind the network"):
        Mine().fit(made_up(0)).module()
