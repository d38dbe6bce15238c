"""Values of the losses against arithmetic done by hand and other libraries; their checks and registry."""

from __future__ import annotations

import itertools
import math
import pickle
import warnings

import numpy as np
import pytest
import torch

from calattn import ModelOutput, losses

NAMES = sorted(losses.LOSSES)
PROBS = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2]], dtype=torch.float64)
LABELS = torch.tensor([1, 0])  # probabilities 0.3 and 0.1: both sides of FLSD's threshold, the second the lowest

log = math.log
BY_HAND = {
    ("ce",): [-log(0.3), -log(0.1)],
    ("brier",): [0.25 + 0.49 + 0.04, 0.81 + 0.49 + 0.04],
    ("ce_brier",): [-log(0.3) + 0.1 * 0.78, -log(0.1) + 0.1 * 1.34],
    ("ce_brier", ("weight", 2.0)): [-log(0.3) + 2 * 0.78, -log(0.1) + 2 * 1.34],
    ("label_smoothing",): [
        -0.95 * log(0.3) - 0.05 / 3 * (log(0.5) + log(0.3) + log(0.2)),
        -0.95 * log(0.1) - 0.05 / 3 * (log(0.1) + log(0.7) + log(0.2)),
    ],
    ("focal",): [-(0.7**3) * log(0.3), -(0.9**3) * log(0.1)],
    ("focal", ("gamma", 0.5)): [-(0.7**0.5) * log(0.3), -(0.9**0.5) * log(0.1)],
    ("flsd53",): [-(0.7**3) * log(0.3), -(0.9**5) * log(0.1)],
    ("dual_focal",): [-(0.9**5) * log(0.3), -(0.9**5) * log(0.1)],  # p_j = 0.2, then nothing below 0.1
    ("dual_focal", ("gamma", 2.0)): [-(0.9**2) * log(0.3), -(0.9**2) * log(0.1)],
    ("mbls",): [-log(0.3), -log(0.1)],  # no distance reaches 10
    ("mbls", ("margin", 0.6)): [
        -log(0.3) + 0.1 * (log(0.5 / 0.2) - 0.6) / 3,  # log(5/3) = 0.51 is within the margin
        -log(0.1) + 0.1 * (log(7) - 0.6 + log(3.5) - 0.6) / 3,
    ],
}


@pytest.mark.parametrize("case", BY_HAND, ids=str)
def test_values_by_hand(case):
    (name, *options), expected = case, torch.tensor(BY_HAND[case], dtype=torch.float64)
    given = losses.create(name, **dict(options), reduction="none")(PROBS.log(), LABELS)
    torch.testing.assert_close(given, expected)
    torch.testing.assert_close(losses.create(name, **dict(options))(PROBS.log(), LABELS), expected.mean())
    total = losses.create(name, **dict(options), reduction="sum")(PROBS.log(), LABELS)
    torch.testing.assert_close(total, expected.sum())


def mmce_by_hand(right, wrong, bandwidth=0.4, divisions=1):
    """The three double sums of Kumar et al., as printed, or divided by their numbers of pairs twice."""

    def mean(first, second):
        terms = [u * v * math.exp(-abs(r - s) / bandwidth) for (u, r), (v, s) in itertools.product(first, second)]
        return sum(terms) / len(terms) ** divisions

    up, down = [(1 - r, r) for r in right], [(r, r) for r in wrong]
    return math.sqrt(mean(down, down) + mean(up, up) - 2 * mean(up, down))


def binary(confidences):
    confidences = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([confidences, 1 - confidences], dim=1).log()


@pytest.mark.parametrize(("weight", "bandwidth"), [(2.0, 0.4), (0.5, 0.1)])
def test_mmce_by_hand(weight, bandwidth):
    given = losses.mmce(binary([0.9, 0.8, 0.6]), torch.tensor([0, 1, 0]), weight=weight, bandwidth=bandwidth)
    cross_entropy = -(log(0.9) + log(0.2) + log(0.6)) / 3
    assert float(given) == pytest.approx(cross_entropy + weight * mmce_by_hand([0.9, 0.6], [0.8], bandwidth))
    assert float(losses.mmce(binary([0.9, 0.8, 0.6]), torch.tensor([0, 1, 0]))) == pytest.approx(
        cross_entropy + 2 * mmce_by_hand([0.9, 0.6], [0.8])
    )


def test_mmce_divided_by_hand_and_how_it_fades():
    logits, labels = binary([0.9, 0.8, 0.6, 0.7]), torch.tensor([0, 1, 0, 0])
    term = losses.mmce_divided(logits, labels, weight=1.0) - losses.ce(logits, labels)
    assert float(term) == pytest.approx(mmce_by_hand([0.9, 0.6, 0.7], [0.8], divisions=2))
    logits, labels = binary([0.9, 0.8]).repeat(8, 1), torch.tensor([0, 1]).repeat(8)
    published, circulating = (
        f(logits, labels, weight=1.0) - losses.ce(logits, labels) for f in (losses.mmce, losses.mmce_divided)
    )
    torch.testing.assert_close(circulating, published * 2 / 16)


@pytest.mark.parametrize("label", [0, 1])
def test_mmce_of_a_batch_with_one_group_is_cross_entropy(label):
    logits, labels = binary([0.9, 0.8, 0.6]).requires_grad_(), torch.full((3,), label)
    torch.testing.assert_close(losses.mmce(logits, labels), losses.ce(logits, labels))
    (slope,) = torch.autograd.grad(losses.mmce(logits, labels), logits)
    torch.testing.assert_close(slope, torch.autograd.grad(losses.ce(logits, labels), logits)[0])


def test_mmce_counts_a_soft_label_as_partly_right():
    # Two copies of a sample, one right and one wrong, weigh as one sample that is half right.
    soft = losses.mmce(binary([0.9, 0.7]), torch.full((2, 2), 0.5, dtype=torch.float64))
    hard = losses.mmce(binary([0.9, 0.9, 0.7, 0.7]), torch.tensor([0, 1, 0, 1]))
    torch.testing.assert_close(soft, hard)


def test_mmce_against_netcal():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from netcal.metrics import MMCE
        from netcal.regularization import MMCEPenalty
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 5, generator=rng, dtype=torch.float64)
    labels = torch.randint(5, (40,), generator=rng)
    labels[:5] = logits[:5].argmax(dim=1)
    ours = losses.mmce(logits, labels, weight=1.0) - losses.ce(logits, labels)
    torch.testing.assert_close(ours, MMCEPenalty()(logits, labels))
    # Pinned difference: netcal's metric is the unweighted MMCE_m, half of MMCE_w where half are right.
    top = logits.argmax(dim=1)
    labels = torch.where(torch.arange(40) % 2 == 0, top, (top + 1) % 5)
    ours = losses.mmce(logits, labels, weight=1.0) - losses.ce(logits, labels)
    unweighted = MMCE().measure(logits.softmax(dim=1).numpy(), labels.numpy())
    assert float(ours) == pytest.approx(2 * float(unweighted))
    # Pinned difference: with one group only, netcal keeps its term; we and the authors return 0.
    assert float(MMCEPenalty()(logits, top)) == pytest.approx(mmce_group(logits.softmax(dim=1).amax(dim=1)))


def mmce_group(confidence):
    r = confidence.numpy()
    kernel = np.exp(-np.abs(r[:, None] - r) / 0.4)
    return math.sqrt(np.mean((1 - r)[:, None] * (1 - r) * kernel))


@pytest.mark.parametrize("alpha", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropies_against_torch(alpha, reduction):
    rng = torch.Generator().manual_seed(1)
    logits, hard = torch.randn(16, 7, generator=rng) * 5, torch.randint(7, (16,), generator=rng)
    soft = torch.rand(16, 7, generator=rng).softmax(dim=1)
    for labels in (hard, soft):
        torch_loss = torch.nn.CrossEntropyLoss(label_smoothing=alpha, reduction=reduction)(logits, labels)
        ours = losses.label_smoothing(logits, labels, alpha=alpha, reduction=reduction)
        torch.testing.assert_close(ours, torch_loss)
        if alpha == 0.0:
            torch.testing.assert_close(losses.ce(logits, labels, reduction=reduction), torch_loss)


def test_dual_focal_skips_ties_below_the_label():
    probs = torch.tensor([[0.3, 0.3, 0.2, 0.2]], dtype=torch.float64)
    for label, below in ((0, 0.2), (1, 0.2), (2, 0.0)):
        p = float(probs[0, label])
        expected = -((1 - p + below) ** 5) * log(p)
        one_hot = torch.eye(4, dtype=torch.float64)[[label]]
        assert float(losses.dual_focal(probs.log(), torch.tensor([label]))) == pytest.approx(expected)
        assert float(losses.dual_focal(probs.log(), one_hot)) == pytest.approx(expected)


def test_default_options_are_those_of_the_papers():
    defaults = {name: losses.create(name).options for name in NAMES}
    for options in defaults.values():
        options.pop("reduction", None)
    assert defaults == {
        "ce": {},
        "brier": {},
        "ce_brier": {"weight": 0.1},
        "mmce": {"weight": 2.0, "bandwidth": 0.4},
        "mmce_divided": {"weight": 2.0, "bandwidth": 0.4},
        "label_smoothing": {"alpha": 0.05},
        "focal": {"gamma": 3.0},
        "flsd53": {},
        "dual_focal": {"gamma": 5.0},
        "mbls": {"margin": 10.0, "weight": 0.1},
    }


@pytest.mark.usefixtures("untyped")
def test_create_names_what_is_wrong():
    with pytest.raises(ValueError, match=r"unknown loss 'flsd'.*did you mean 'flsd53'.*known: brier, ce"):
        losses.create("flsd")
    with pytest.raises(ValueError, match="mmce has no option 'reduction'; it takes weight, bandwidth"):
        losses.create("mmce", reduction="none")
    with pytest.raises(ValueError, match="reduction must be 'mean', 'sum' or 'none', got 'avg'"):
        losses.create("ce", reduction="avg")
    bad = {
        "weight": [-0.1, math.inf, "a", True],
        "bandwidth": [0.0, math.nan],
        "alpha": [-0.1, 1.1],
        "gamma": [-1.0],
        "margin": [-1.0],
    }
    for name in NAMES:
        for option in losses.create(name).options.keys() & bad.keys():
            for value in bad[option]:
                with pytest.raises(ValueError, match=f"{option} must be .*got {value!r}"):
                    losses.create(name, **{option: value})


@pytest.mark.usefixtures("untyped")
def test_loss_is_a_value():
    loss = losses.create("mbls", margin=6)  # an int, as YAML gives it
    assert loss.options == {"margin": 6.0, "weight": 0.1, "reduction": "mean"}
    assert repr(pickle.loads(pickle.dumps(loss))) == repr(loss)
    assert repr(loss) == "Loss(mbls, margin=6.0, weight=0.1, reduction='mean')"
    loss.options["margin"] = 0.0
    assert loss.options["margin"] == 6.0


WRONG_INPUTS = [
    (torch.zeros(2, 3), torch.tensor([0]), r"labels must be class indices \[2\] or soft labels \[2, 3\]"),
    (torch.zeros(2, 3), torch.ones(2, 2) / 2, r"soft labels \[2, 3\], got torch.float32 \[2, 2\]"),
    (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), r"got torch.float32 \[2\]"),
    (torch.zeros(2, 3), torch.tensor([True, False]), "got torch.bool"),
    (torch.zeros(2, 3), [0, 1], "labels must be a tensor, got list"),
    (torch.zeros(2, 3), torch.tensor([0, 3]), r"labels\[1\] is 3, outside \[0, 2\]"),
    (torch.zeros(2, 3), torch.tensor([-100, 0]), r"labels\[0\] is -100"),
    (torch.zeros(2, 2), torch.tensor([[0.5, 0.5], [0.5, 0.6]]), r"labels\[1\] sums to 1.1, not 1"),
    (torch.zeros(2, 2), torch.tensor([[1.5, -0.5], [1, 0]]), r"labels\[0\] has a negative or NaN entry"),
    (torch.zeros(2, 2), torch.tensor([[1, 0], [math.nan, 0]]), r"labels\[1\] has a negative or NaN entry"),
    (torch.zeros(3), torch.tensor([0]), r"logits must be floating point \[n, c\], got torch.float32 \[3\]"),
    (torch.zeros(2, 3).long(), torch.tensor([0, 1]), "logits must be floating point"),
    (torch.zeros(0, 3), torch.zeros(0).long(), "logits must have a row and two classes"),
    (torch.zeros(2, 1), torch.tensor([0, 0]), "logits must have a row and two classes"),
    (torch.zeros(2, 3), torch.zeros(2, device="meta").long(), "labels are on meta, logits on cpu"),
    (
        ModelOutput(torch.zeros(1, 2), torch.ones(1), torch.zeros(1, 1)),
        torch.tensor([0]),
        "calibrated_logits",
    ),
]


@pytest.mark.parametrize(("logits", "labels", "message"), WRONG_INPUTS, ids=[m for *_, m in WRONG_INPUTS])
@pytest.mark.usefixtures("untyped")
def test_wrong_inputs_are_named(logits, labels, message):
    for check in [losses.check_labels, *map(losses.create, NAMES)]:
        with pytest.raises(ValueError, match=message):
            check(logits, labels)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_read_back_from_the_device(name):
    # A meta tensor has no values: any .item() or branch on data would raise, as it would make a GPU wait.
    logits = torch.zeros(4, 3, device="meta", requires_grad=True)
    for labels in (torch.zeros(4, dtype=torch.int64, device="meta"), torch.zeros(4, 3, device="meta")):
        losses.create(name)(logits, labels).backward()
        assert logits.grad is not None
        assert logits.grad.shape == (4, 3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.usefixtures("untyped")
def test_compiles_whole(name, soft):
    torch._dynamo.reset()  # else the graphs of the other losses count against the recompile limit
    loss = losses.create(name)
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    labels = torch.eye(4)[[0, 1, 2, 3, 0, 1]] if soft else torch.tensor([0, 1, 2, 3, 0, 1])
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    slopes = []
    for call in (loss, compiled):
        leaf = logits.clone().requires_grad_()
        value = call(leaf, labels)
        value.backward()
        slopes.append((value.detach(), leaf.grad))
    torch.testing.assert_close(slopes[1], slopes[0])


@pytest.mark.parametrize(
    ("name", "option"), [("ce_brier", "weight"), ("mbls", "margin"), ("mmce", "bandwidth"), ("focal", "gamma")]
)
@pytest.mark.usefixtures("untyped")
def test_a_second_loss_of_other_options_compiles_whole_in_one_process(name, option):
    """From the second on, torch makes a symbol of the number, which had no finiteness to ask for."""
    torch._dynamo.reset()
    logits, labels = torch.randn(6, 4, generator=torch.Generator().manual_seed(2)), torch.tensor([0, 1, 2, 3, 0, 1])
    for value in (0.5, 1.5, 2.5):
        loss = losses.create(name, **{option: value})
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(logits, labels), loss(logits, labels))
