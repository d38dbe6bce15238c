"""Gradients of the losses: against finite differences and the paper's closed forms, and at extreme logits."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from calattn import heads, losses

NAMES = sorted(losses.LOSSES)
OPTIONS = [(name, {}) for name in NAMES] + [
    ("focal", {"gamma": 0.0}),
    ("focal", {"gamma": 0.3}),
    ("dual_focal", {"gamma": 0.3}),
    ("mbls", {"margin": 0.5, "weight": 2.0}),
]


def batch(n=6, c=4, seed=0, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, c, generator=rng, dtype=dtype)
    hard = torch.randint(c, (n,), generator=rng)
    return logits, hard, torch.randn(n, c, generator=rng, dtype=dtype).softmax(dim=1)


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_gradcheck(name, options):
    logits, hard, soft = batch()
    loss = losses.create(name, **options)
    for labels in (hard, soft):
        assert torch.autograd.gradcheck(lambda z, q=labels: loss(z, q), logits.clone().requires_grad_())


@pytest.mark.parametrize("weight", [0.0, 0.1, 3.0])
def test_gradient_through_the_scale_is_the_papers(weight):
    """∂L/∂s = (ℓ_y − Σ ŷ_j ℓ_j)/s² − λ (2/s²)(ŷ − e_y)ᵀ J(ŷ) ℓ, as printed; and finite differences."""
    logits, labels, _ = batch(n=8, c=5, seed=1)
    scale = torch.linspace(0.3, 4.0, 8, dtype=torch.float64, requires_grad=True)

    def loss(s):
        return losses.ce_brier(logits / s.unsqueeze(1), labels, weight=weight, reduction="none")

    given = torch.autograd.grad(loss(scale).sum(), scale)[0]
    for i, (ell, y, s) in enumerate(zip(logits, labels, scale.detach(), strict=True)):
        y_hat = (ell / s).exp() / (ell / s).exp().sum()
        e_y = torch.eye(5, dtype=torch.float64)[y]
        jacobian = torch.diag(y_hat) - torch.outer(y_hat, y_hat)
        ce_term = (ell[y] - y_hat @ ell) / s**2
        brier_term = -2 / s**2 * (y_hat - e_y) @ jacobian @ ell
        torch.testing.assert_close(given[i], ce_term + weight * brier_term, rtol=1e-12, atol=1e-14)
    assert torch.autograd.gradcheck(loss, scale)


def extreme_logits(dtype):
    """Every row over {−1e4, 0, 1e4}: saturated right and wrong, and every kind of tie."""
    rows = torch.tensor(list(itertools.product([-1e4, 0.0, 1e4], repeat=3)), dtype=dtype)
    return rows.repeat(3, 1), torch.arange(3).repeat_interleave(len(rows))


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_finite_at_extreme_logits(name, options, dtype):
    logits, hard = extreme_logits(dtype)
    soft = torch.full((len(logits), 3), 0.1, dtype=dtype)
    soft[torch.arange(len(logits)), hard] = 0.8
    for labels in (hard, torch.eye(3, dtype=dtype)[hard], soft):
        leaf = logits.clone().requires_grad_()
        value = losses.create(name, **options)(leaf, labels)
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(leaf.grad).all()


def test_mmce_is_finite_in_small_batches():
    """One row is one group; saturated rows make MMCE_w exactly 0, where a bare square root has slope ∞."""
    logits, labels = extreme_logits(torch.float32)
    for n, start in itertools.product((1, 2), range(0, 80, 3)):
        leaf = logits[start : start + n].clone().requires_grad_()
        losses.mmce(leaf, labels[start : start + n]).backward()
        assert torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_gradient_pulls_back_from_a_wrong_answer(name):
    """At ±1e4 cross-entropy still has slope 1; only Brier saturates, because its slope carries p (1 − p)."""
    logits = torch.tensor([[1e4, -1e4, -1e4]], requires_grad=True)
    losses.create(name)(logits, torch.tensor([1])).backward()
    expected = 0.0 if name == "brier" else 0.9  # smoothing and the margin move some of it to other classes
    assert -logits.grad[0, 1] >= expected
    assert logits.grad[0, 0] >= expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_half_precision_is_widened_first(name, soft):
    logits, hard, q = batch(dtype=torch.float32)
    labels = q if soft else hard
    loss = losses.create(name)
    for dtype in (torch.bfloat16, torch.float16):
        leaf = logits.to(dtype).requires_grad_()
        value = loss(leaf, labels)
        assert value.dtype == torch.float32
        assert torch.equal(value, loss(leaf.float(), labels))
        value.backward()
        assert leaf.grad.dtype == dtype
        assert leaf.grad.abs().sum() > 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(logits, labels), loss(logits.clone(), labels))
        inside = loss(logits, labels)
    assert torch.equal(inside, loss(logits, labels))


# Label smoothing gives the masked class label mass, MbLS penalises its distance: both are rightly infinite.
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("label_smoothing", "mbls")])
def test_impossible_classes_do_no_harm(name):
    """A class masked out with −inf leaves the loss what it is without it."""
    logits, hard, soft = batch()
    masked = torch.cat([logits, torch.full((6, 1), -math.inf, dtype=torch.float64)], dim=1).requires_grad_()
    wide = torch.cat([soft, torch.zeros(6, 1, dtype=torch.float64)], dim=1)
    for labels, narrow in ((hard, hard), (wide, soft)):
        value = losses.create(name)(masked, labels)
        torch.testing.assert_close(value, losses.create(name)(logits, narrow))
        assert torch.isfinite(torch.autograd.grad(value, masked)[0]).all()


@pytest.mark.parametrize("name", NAMES)
def test_no_slope_asks_which_entry_equals_the_maximum(name):
    """The slope of `amax` does, and a compiler that computes the entry again, rounded otherwise, finds none: 0 / 0."""
    logits, hard, soft = batch()
    for labels in (hard, soft):
        nodes, seen = [losses.create(name)(logits.clone().requires_grad_(), labels).grad_fn], set()
        while nodes:
            node = nodes.pop()
            if node is not None and node not in seen:
                seen.add(node)
                nodes += [before for before, _ in node.next_functions]
        assert len(seen) > 3
        assert not [node.name() for node in seen if node.name().startswith(("Amax", "Amin"))]


@pytest.mark.parametrize("gamma", [0.01, 0.5, 1.0, 5.0])
def test_focal_gradient_vanishes_where_the_answer_is_certain(gamma):
    for name in ("focal", "dual_focal"):
        logits = torch.tensor([[200.0, 0.0, -1.0]], requires_grad=True)
        losses.create(name, gamma=gamma)(logits, torch.tensor([0])).backward()
        assert logits.grad.abs().max() < 1e-6


@pytest.mark.parametrize("head_name", sorted(heads.HEADS))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_every_loss_trains_every_head(name, head_name, soft):
    torch.manual_seed(0)
    backbone, classifier = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
    head = heads.HEADS[head_name](num_features=8, num_classes=3, hidden=4, bias=True)
    model = torch.nn.ModuleList([backbone, classifier, head])
    labels = torch.rand(10, 3).softmax(dim=1) if soft else torch.arange(10) % 3
    features = backbone(torch.randn(10, 6))
    output = head(features, classifier(features))
    value = losses.create(name)(output.calibrated_logits, labels)
    value.backward()
    assert torch.isfinite(value)
    slopes = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    assert all(torch.isfinite(slope).all() for slope in slopes.values())
    assert slopes["0.weight"].abs().sum() > 0
    if any(p.requires_grad for p in head.parameters()):
        assert any(slope.abs().sum() > 0 for key, slope in slopes.items() if key.startswith("2."))
