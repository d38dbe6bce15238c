"""Heads: the paper's formula, the identity at start, float32 whatever comes in."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from calattn.heads import HEADS, CalAttn, Dirichlet, RelaxedSoftmax, evidence, log_evidence


def build(name: str, *, num_features: int = 8, num_classes: int = 5):
    return HEADS[name](num_features=num_features, num_classes=num_classes, hidden=16, bias=True)


def awaken(head: torch.nn.Module) -> None:
    """Random parameters: at the identity most gradients are zero and every formula looks right."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)


def batch(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(4, 8, generator=generator).to(dtype)
    return features, (torch.randn(4, 5, generator=generator) * 3).to(dtype)


def test_registry_holds_them_all() -> None:
    taught = {"taught", "taught_classwise", "taught_scale"}
    assert set(HEADS) == {"calattn", "relaxed_softmax", "dirichlet", "none"} | taught
    with pytest.raises(ValueError, match=r"calatn.*did you mean 'calattn'"):
        HEADS["calatn"]


@pytest.mark.parametrize("name", list(HEADS))
def test_identity_at_start_is_bit_exact(name: str) -> None:
    features, logits = batch()
    out = build(name)(features, logits)
    assert torch.equal(out.calibrated_logits, logits)
    assert out.scale.tolist() == [1.0] * 4
    assert out.features is features
    assert out.logits is logits


@pytest.mark.parametrize("name", list(HEADS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scale_is_float32_whatever_comes_in(name: str, dtype: torch.dtype) -> None:
    out = build(name)(*batch(dtype))
    assert out.scale.dtype == torch.float32
    assert out.scale.shape == (4,)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    assert out.calibrated_logits.dtype == expected


@pytest.mark.parametrize("name", ["calattn", "relaxed_softmax", "dirichlet"])
def test_autocast_changes_no_bit(name: str) -> None:
    head = build(name)
    awaken(head)
    features, logits = batch()
    plain = head(features, logits)
    with torch.autocast("cpu", torch.bfloat16):
        cast = head(features, logits)
    assert torch.equal(cast.scale, plain.scale)
    assert torch.equal(cast.probs, plain.probs)


@pytest.mark.parametrize("name", ["calattn", "relaxed_softmax", "dirichlet"])
def test_half_precision_parameters_are_widened(name: str) -> None:
    head = build(name)
    awaken(head)
    features, logits = batch(torch.bfloat16)
    half = head.to(torch.bfloat16)(features, logits).calibrated_logits
    widened = head.float()(features.float(), logits.float()).calibrated_logits
    assert half.dtype == torch.float32
    assert torch.equal(half, widened)


@pytest.mark.parametrize("bias", [True, False])
def test_calattn_is_equation_one(bias: bool) -> None:
    head = CalAttn(8, hidden=16, bias=bias)
    awaken(head)
    features, logits = batch()
    w1, w2 = head.mlp.fc1.weight.double(), head.mlp.fc2.weight.double()[0]
    b1 = head.mlp.fc1.bias.double() if bias else torch.zeros(16, dtype=torch.float64)
    hidden = features.double() @ w1.T + b1
    gelu = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    expected = torch.log1p(torch.exp(gelu @ w2 + head.mlp.fc2.bias.double())) + 1e-6
    out = head(features, logits)
    torch.testing.assert_close(out.scale.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(out.calibrated_logits, logits / out.scale[:, None], rtol=0, atol=0)
    assert out.scale.std() > 0.01, "the samples must differ, or the formula was not tested"


def test_calattn_start_values() -> None:
    head = CalAttn(8)
    assert not head.mlp.fc2.weight.any()
    assert not head.mlp.fc1.bias.any()
    assert head.mlp.fc1.weight.std() > 0
    paper = math.log(math.e - 1)
    assert head.mlp.fc2.bias.item() == pytest.approx(paper, abs=2e-6)
    assert functional.softplus(torch.tensor(paper)).item() + 1e-6 != 1.0  # why b2 is not the paper's number


def test_scale_stays_positive_where_softplus_underflows() -> None:
    head = CalAttn(8)
    with torch.no_grad():
        head.mlp.fc2.bias.fill_(-200.0)
    out = head(*batch())
    assert out.scale.tolist() == pytest.approx([1e-6] * 4)
    assert torch.isfinite(out.calibrated_logits).all()


def test_relaxed_softmax_divides_by_the_inverse() -> None:
    head = RelaxedSoftmax(8)
    awaken(head)
    features, logits = batch()
    alpha = torch.log1p(torch.exp(features @ head.fc.weight[0] + head.fc.bias)) + 1e-6
    out = head(features, logits)
    torch.testing.assert_close(out.calibrated_logits, alpha[:, None] * logits)
    assert sum(p.numel() for p in head.parameters()) == 8 + 1


def test_dirichlet_prediction_and_evidence() -> None:
    head = Dirichlet(8, 5, hidden=16)
    awaken(head)
    features, logits = batch()
    out = head(features, logits)
    alpha = logits.exp() * head.mlp(features)
    torch.testing.assert_close(out.probs, alpha / alpha.sum(dim=1, keepdim=True))
    torch.testing.assert_close(evidence(out), alpha.sum(dim=1))
    assert torch.equal(out.scale, torch.ones(4))
    assert (out.probs.argmax(1) != logits.argmax(1)).any() or out.offset.std() > 0.1


def test_log_evidence_survives_large_logits() -> None:
    out = Dirichlet(8, 5)(batch()[0], torch.full((4, 5), 1000.0))
    torch.testing.assert_close(log_evidence(out), torch.full((4,), 1000.0 + math.log(5)))
    assert torch.isinf(evidence(out)).all()


@pytest.mark.parametrize(("argument", "value"), [("hidden", 0), ("hidden", -3), ("num_features", 0)])
def test_widths_must_be_positive(argument: str, value: int) -> None:
    arguments = {"num_features": 8, "hidden": 4, argument: value}
    with pytest.raises(ValueError, match=f"{argument} must be a positive integer, got {value}"):
        CalAttn(arguments["num_features"], hidden=arguments["hidden"])


@pytest.mark.parametrize("name", ["calattn", "relaxed_softmax", "dirichlet"])
def test_gradients_reach_parameters_features_and_logits(name: str) -> None:
    head = build(name)
    awaken(head)
    features, logits = (tensor.requires_grad_() for tensor in batch())
    functional.cross_entropy(head(features, logits).calibrated_logits, torch.arange(4)).backward()
    for tensor in (features, logits, *head.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0


def test_first_step_leaves_the_identity() -> None:
    """At start only w2 and b2 have gradients (w2 = 0 blocks the first layer); after a step all of them do."""
    head = CalAttn(8, hidden=16)
    features, logits = batch()
    optimiser = torch.optim.SGD(head.parameters(), lr=0.1)
    for step in range(2):
        optimiser.zero_grad()
        functional.cross_entropy(head(features, logits).calibrated_logits, torch.arange(4)).backward()
        assert bool(head.mlp.fc1.weight.grad.any()) is (step == 1)
        assert head.mlp.fc2.weight.grad.any()
        optimiser.step()
    assert not torch.equal(head(features, logits).calibrated_logits, logits)
