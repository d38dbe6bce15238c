"""Losses, heads and backbones of somebody else's: what is wrong with them is said by name, before anything is written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import calattn
from calattn import losses
from calattn.backbones import BACKBONES
from calattn.engine.step import TrainStep
from calattn.heads import HEADS
from calattn.registry import Registry
from calattn.runs import build
from calattn.runs.build import build_loss
from calattn.runs.plan import check_run
from tests.cli_runner import invoke
from tests.small_runs import SMALL, set_flags, small_spec

pytestmark = pytest.mark.usefixtures("untyped")
LINE = ["train", "digits", "--out", "run", "--accelerator", "cpu"]
LINE += set_flags(*SMALL, "schedule.warmup_epochs=0", "train.epochs=1")


@pytest.fixture(autouse=True)
def as_before(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for registry in (losses.LOSSES, HEADS, BACKBONES):
        monkeypatch.setattr(registry, "_items", dict(registry._items))


def refused(capsys, tmp_path, *changes: str) -> str:
    """The one line; nothing was written by then."""
    result = invoke(capsys, *LINE, *set_flags(*changes))
    assert result.code == 2, result.err
    assert result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
    return result.err


class Net(nn.Module):
    """Not timm's: its last linear layer is read."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(64, 8), nn.Linear(8, outputs)

    def forward(self, x):
        return self.fc(self.body(x.flatten(1)).relu())


# --- backbones


@pytest.mark.parametrize("outputs", [7, 12, 1])
def test_a_backbone_with_another_number_of_outputs(capsys, tmp_path, outputs):
    BACKBONES.add("mine", lambda **_: Net(outputs))
    told = refused(capsys, tmp_path, "model.backbone=mine", "model.options={}")
    assert f"the backbone 'mine' gives logits [2, {outputs}] for two images of 10 classes; they must be [2, 10]" in told


@pytest.mark.parametrize("error", [KeyError("depth"), AttributeError("x"), ZeroDivisionError("division by zero")])
def test_a_backbone_that_cannot_be_built_is_named(capsys, tmp_path, error):
    def mine(**_):
        raise error

    BACKBONES.add("mine", mine)
    told = refused(capsys, tmp_path, "model.backbone=mine", "model.options={}")
    assert f"the backbone 'mine' cannot be built ({type(error).__name__}: {error})" in told


def test_a_backbone_that_fails_as_it_runs_is_named(capsys, tmp_path):
    class Fails(Net):
        def forward(self, x):
            return super().forward({"x": x}["y"])

    BACKBONES.add("mine", lambda **_: Fails(10))
    told = refused(capsys, tmp_path, "model.backbone=mine", "model.options={}")
    assert "mine does not take images of 8 px (KeyError: 'y')" in told


# --- heads


class OwnHead(calattn.heads.Head):
    def __init__(self, give) -> None:
        super().__init__()
        self.give = give

    def forward(self, features, logits):
        return self.give(features, logits)


def scaled(scale):
    return lambda features, logits: calattn.ModelOutput(logits, scale(features), features)


def raising(*_):
    return {}["gone"]


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (scaled(lambda z: torch.zeros(len(z))), "the head 'mine' gives the scale [0.0, 0.0] for two random images"),
        (scaled(lambda z: -torch.ones(len(z))), "must be positive and finite: end it with softplus"),
        (scaled(lambda z: torch.full((len(z),), torch.nan)), "the head 'mine' gives the scale [nan, nan]"),
        (scaled(lambda z: torch.ones(len(z), 1)), "the head 'mine' gives a scale of shape [2, 1] for two images"),
        (scaled(lambda z: torch.ones(len(z), 10)), "scale of shape [2, 10]"),
        (scaled(lambda _: torch.ones(())), "scale of shape []"),
        (scaled(lambda _: torch.ones(1)), "scale of shape [1]"),
        (lambda _, logits: logits, "the head 'mine' fails on two images (the head OwnHead gave Tensor; a head returns"),
        (raising, "the head 'mine' fails on two images (KeyError: 'gone'); fix it"),
    ],
)
def test_a_head_that_gives_something_else(capsys, tmp_path, give, words):
    HEADS.add("mine", lambda **_: OwnHead(give))
    assert words in refused(capsys, tmp_path, "model.head=mine")


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        (lambda **_: {}["size"], "the head 'mine' cannot be built with num_features=16, num_classes=10, hidden=128, bias=True "
         "(KeyError: 'size')"),
        (lambda width: OwnHead(width), "unexpected keyword argument 'num_features'"),
    ],
)  # fmt: skip
def test_a_head_that_cannot_be_built_is_named(capsys, tmp_path, builder, words):
    HEADS.add("mine", builder)
    assert words in refused(capsys, tmp_path, "model.head=mine")


def test_a_head_may_be_a_module():
    head = OwnHead(scaled(lambda z: torch.full((len(z),), 2.0)))
    net = Net(10)
    model, images = calattn.attach(net, head=head), torch.randn(3, 1, 8, 8)
    assert model.head is head
    assert torch.equal(model(images), net(images) / 2)
    with pytest.raises(ValueError, match="hidden=64, bias=True are for heads by name"):
        calattn.attach(net, head=head, hidden=64)
    with pytest.raises(TypeError, match=r"a head such as MyHead\(8\), an nn.Module; got the class OwnHead"):
        calattn.attach(net, head=OwnHead)
    with pytest.raises(TypeError, match="the head OwnHead gave Tensor; a head returns calattn"):
        calattn.attach(net, head=OwnHead(lambda _, logits: logits))(images)


@pytest.mark.parametrize(
    ("scale", "remedy"),
    [
        (torch.ones(3, 1), r"\[3\], one number per sample, got \[3, 1\] for logits \[3, 4\]; squeeze\(1\) it"),
        (torch.ones(3, 4), r"got \[3, 4\].*one factor per class as the offset"),
        (torch.ones(()), r"got \[\].*scale.expand\(len\(logits\)\)"),
    ],
)
def test_a_scale_of_another_shape_is_not_broadcast(scale, remedy):
    output = calattn.ModelOutput(torch.zeros(3, 4), scale, torch.zeros(3, 2))
    with pytest.raises(ValueError, match=remedy):
        output.calibrated_logits  # noqa: B018
    with pytest.raises(ValueError, match=remedy):
        output.probs  # noqa: B018


def test_a_registry_is_asked_by_name():
    predictions = calattn.Predictions(logits=torch.randn(3, 2), labels=torch.tensor([0, 1, 0]))
    with pytest.raises(
        TypeError, match="a metric must be given by its name, got function; register it under one first"
    ):
        calattn.evaluate(predictions, metrics=[lambda _: 0.0], num_bootstrap=0)


def test_a_name_is_given_anew_only_on_request():
    numbers: Registry[int] = Registry("number")
    numbers.add("one", 1)
    with pytest.raises(ValueError, match="number 'one' is registered twice; choose another name, or pass replace=True"):
        numbers.add("one", 2)
    numbers.register("one", replace=True)(3)
    assert numbers["one"] == 3


# --- losses


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda z, y: losses.ce(z, y, reduction="none"), "the loss 'mine' gave a tensor of shape [192]"),
        (lambda z, y: losses.ce(z, y).reshape(1), "gave a tensor of shape [1]; it must give one number: end it with .squeeze()"),
        (lambda z, y: float(losses.ce(z, y)), "the loss 'mine' gave float; it must give a tensor of one number"),
        (lambda _z, _y: None, "the loss 'mine' gave NoneType; it must give a tensor of one number: return it"),
        (lambda z, y: losses.ce(z, y).detach(), "the loss 'mine' gave a number without a gradient"),
        (lambda z, _: z.argmax(dim=1).sum(), "the loss 'mine' gave torch.int64"),
        (lambda z, _: z.sum() * torch.nan, "the loss 'mine' is nan on random logits of 192 samples"),
        (lambda *_: {}["weights"], "the loss 'mine' fails with KeyError: 'weights'"),
        (lambda z: z.sum(), "the loss 'mine' fails with TypeError"),
    ],
)  # fmt: skip
def test_a_loss_that_gives_something_else(capsys, tmp_path, function, words):
    losses.LOSSES.add("mine", lambda: function)
    told = refused(capsys, tmp_path, "loss.name=mine", "train.batch_size=192")
    assert words in told
    assert "bug" not in told


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (
            lambda *, _weight=1.0: None,
            "the loss 'mine' cannot be made with bins=5 (<lambda>() got an unexpected keyword",
        ),
        (lambda **_: {}["x"], "the loss 'mine' cannot be made with bins=5 (KeyError: 'x')"),
        (lambda **_: torch.ones(()), "the loss 'mine' gave Tensor in place of a function of (logits, labels)"),
    ],
)
def test_a_loss_that_cannot_be_made_with_its_options(capsys, tmp_path, factory, words):
    losses.LOSSES.add("mine", factory)
    told = refused(capsys, tmp_path, "loss.name=mine", "loss.options={bins: 5}")
    assert words in told


def test_a_loss_for_hard_labels_is_refused_where_images_are_mixed(capsys, tmp_path):
    losses.LOSSES.add("mine", lambda: lambda z, y: -z.log_softmax(1)[torch.arange(len(y)), y].mean())
    check = small_spec("loss.name=mine", "loss.options={}")
    build_loss(check)(torch.randn(2, 10), torch.tensor([0, 1]))
    told = refused(capsys, tmp_path, "loss.name=mine", "augment.mixup=0.8")
    assert "the loss 'mine' fails with IndexError" in told


def test_a_loss_that_fails_in_the_middle_is_named():
    def mine():
        def loss(logits, labels):
            if len(logits) == 3:
                raise KeyError("three")
            return losses.ce(logits, labels)

        return loss

    losses.LOSSES.add("mine", mine)
    step = TrainStep(calattn.attach(Net(10), head="none"), build_loss(small_spec("loss.name=mine", "loss.options={}")))
    step(torch.randn(2, 1, 8, 8), torch.tensor([0, 1]))
    with pytest.raises(losses.LossError, match="the loss 'mine' fails with KeyError: 'three'"):
        step(torch.randn(3, 1, 8, 8), torch.tensor([0, 1, 2]))


def test_memory_that_runs_out_in_a_loss_is_no_fault_of_the_loss():
    def loss(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        losses.OwnLoss("mine", loss)(torch.randn(2, 3), torch.tensor([0, 1]))


def test_a_watched_loss_compiles_to_one_graph():
    loss = losses.OwnLoss("mine", lambda z, y: 2 * torch.nn.functional.cross_entropy(z, y))
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert torch.equal(compiled(logits, labels), loss(logits, labels))


def test_trying_a_loss_out_leaves_the_random_numbers_alone():
    losses.LOSSES.add("mine", lambda: lambda z, y: losses.ce(z + torch.randn(z.shape), y))
    spec = small_spec("loss.name=mine", "loss.options={}")
    found = build.load_data(spec)
    model = build.build_model(spec, num_classes=10, channels=1, size=8)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    check_run(spec, model, found)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert not model.head._forward_pre_hooks


# --- options


def test_options_of_a_loss_arrive_as_they_were_written():
    seen = {}
    losses.LOSSES.add("mine", lambda **options: seen.update(options) or losses.ce)
    build_loss(
        small_spec("loss.name=mine", "loss.options={bins: 5, weights: [1, 2.5], flat: true, costs: [[0, 1], [1, 0]]}")
    )
    assert seen == {"bins": 5, "weights": [1, 2.5], "flat": True, "costs": [[0, 1], [1, 0]]}
    assert [type(each) for each in (seen["bins"], *seen["weights"], seen["flat"])] == [int, int, float, bool]
    build_loss(small_spec("loss.name=mine", "loss.options.bins=7"))
    assert type(seen["bins"]) is int


def test_whole_numbers_change_no_hash():
    whole, real, other = (
        small_spec("loss.name=focal", f"loss.options={{gamma: {g}}}").hash for g in ("3", "3.0", "3.5")
    )
    assert whole == real != other


@pytest.mark.parametrize("given", ["null", "{a: 1}", "[a]", ".inf", "[.nan]", "[[[1]]]", "[true]"])
def test_other_options_are_refused_by_name(given):
    with pytest.raises(ValueError, match=r"loss.options.w must be a finite number, true or false, a text or a list of"):
        small_spec(f"loss.options={{w: {given}}}")
