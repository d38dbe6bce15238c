"""The run spec: what it refuses, how recipes lie over each other, and what its hash covers."""

from __future__ import annotations

import pytest

from calattn.runs.recipes import RECIPES
from calattn.runs.resolving import resolve
from calattn.runs.spec import RunSpec, SpecError


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_resolves_and_says_what_it_is(name):
    assert isinstance(resolve(name), RunSpec)
    assert RECIPES.text(name).startswith("# ")
    assert len(RECIPES[name]) > 20


def test_the_protocol_of_the_paper_is_in_the_recipes():
    sgd, adamw = resolve("sgd-step"), resolve("adamw-cosine")
    assert (sgd.optimizer.name, sgd.optimizer.lr, sgd.optimizer.weight_decay) == ("momentum", 0.1, 5e-4)
    assert (sgd.optimizer.options, sgd.optimizer.decay_all) == ({"momentum": 0.9}, True)
    assert (sgd.train.epochs, sgd.schedule.options["decay_milestones"]) == (350, [150, 250])
    assert (adamw.optimizer.name, adamw.optimizer.weight_decay, adamw.schedule.name) == ("adamw", 0.05, "cosine")
    assert (adamw.augment.crop, adamw.data.validation, adamw.loss.options) == (4, 0.05, {"weight": 0.1})


def test_a_base_lies_under_a_file_and_overrides_over_it(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: digits\noptimizer: {lr: 5.0e-4}\n")
    (tmp_path / "yours.yaml").write_text("base: mine.yaml\nseed: 3\n")
    spec = resolve(str(tmp_path / "yours.yaml"), ["train.epochs=7"])
    assert (spec.seed, spec.optimizer.lr, spec.train.epochs, spec.data.name) == (3, 5e-4, 7, "digits")
    assert spec.optimizer.clip_norm == resolve("digits").optimizer.clip_norm  # from two layers below


def test_a_new_name_ends_the_options_of_the_old_one():
    assert resolve("cifar10", ["loss.name=ce"]).loss.options == {}
    assert resolve("cifar10", ["loss.name=mbls", "loss.options.margin=6"]).loss.options == {"margin": 6.0}
    assert resolve("digits", ["model.backbone=resnet8_cifar"]).model.options == {}
    assert resolve("cifar10", ["loss.options.weight=0.3"]).loss.options == {"weight": 0.3}


def test_the_hash_covers_what_decides_the_result_and_nothing_else():
    base = resolve("digits")
    for change in ("seed=1", "train.epochs=31", "optimizer.lr=0.1", "data.split_seed=2", "loss.options.weight=0.2"):
        assert resolve("digits", [change]).hash != base.hash, change
    for change in ("name=mine", "evaluation.features=true", "evaluation.batch_size=7"):
        assert resolve("digits", [change]).hash == base.hash, change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.epoch=3", "unknown key 'train.epoch'; did you mean 'train.epochs'?"),
        ("epochs=3", "unknown key 'epochs'; did you mean 'train.epochs'?"),
        ("optimzer.lr=1", "unknown key 'optimzer'; did you mean 'optimizer'?"),
        ("optimizer.lr=-1", "optimizer.lr must be greater than 0, got -1"),
        ("optimizer.lr=nan", "optimizer.lr must be a finite number, got 'nan'"),
        ("train.epochs=-1", "train.epochs must be greater than or equal to 0, got -1"),
        (
            "train.epochs=0",
            "train.epochs=0 only teaches a head, and the network is not trained; train for 1 epoch or more, or add "
            "model.weights=FILE or model.pretrained=true",
        ),
        ("train.epochs=2.5", "train.epochs must be a valid integer, got a number with a fractional part, got 2.5"),
        ("augment.crop=abc", "augment.crop must be a valid integer or 'resized', got 'abc'"),
        ("train=3", "train must be a valid section with keys of its own, got 3"),
        ("data.mean=[0.5]", "data.mean and data.std go together, one number per channel in each; set both"),
        ("data={mean: [], std: []}", "data.mean and data.std go together, one number per channel in each; set both"),
        ("data.std=[0]", "data.std.0 must be greater than 0, got 0"),
        ("data.validation=1", "data.validation must be less than 1, got 1"),
        ("optimizer.accumulate=5", "train.batch_size=32 is not a multiple of optimizer.accumulate=5"),
        ("seed", "--set 'seed' must be key=value, such as --set optimizer.lr=0.001"),
        (
            "seed={",
            "--set seed, line 1, column 2: expected the node content, but found '<stream end>'; fix the YAML there",
        ),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(SpecError) as error:
        resolve("digits", [change])
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["model.head=calattn", "teach.steps=10"],
            "teach is of taught heads, and model.head=calattn is none; leave it out",
        ),
        (["augment.mixup=0.8", "train.batch_size=7"], "pair images, so a micro-batch must be even; it is 7"),
    ],
)
def test_what_does_not_fit_together(changes, message):
    with pytest.raises(SpecError, match=message):
        resolve("digits", changes)
    assert resolve("digits", changes[1:]) is not None, "each alone does"


@pytest.mark.parametrize(
    ("base", "message"), [("a.yaml", "goes round in a circle"), ("[1]", "base must be a recipe's name or a path")]
)
def test_a_base_that_is_none(tmp_path, base, message):
    path = tmp_path / "a.yaml"
    path.write_text(f"base: {base}\n")
    with pytest.raises(SpecError, match=message):
        resolve(str(path))


@pytest.mark.parametrize("order", [1, -1])
def test_a_name_and_its_options_may_be_set_in_any_order(order):
    assert resolve("digits", ["model.backbone=vgg11", "model.options={}"][::order]).model.options == {}
    wanted = ["loss.name=focal", "loss.options.gamma=5", "optimizer.name=sgd", "optimizer.options.momentum=0.8"]
    spec = resolve("digits", wanted[::order])
    assert (spec.loss.name, spec.loss.options) == ("focal", {"gamma": 5})
    assert (spec.optimizer.name, spec.optimizer.options) == ("sgd", {"momentum": 0.8})
    assert resolve("digits", ["loss.options.gama=3", "loss.name=focal"][::order]).loss.options == {"gama": 3}, (
        "a misspelt one is not lost: building the loss will name it"
    )


def test_a_misspelt_spec_file_is_suggested(tmp_path, monkeypatch):
    (tmp_path / "my.yaml").write_text("base: digits\n")
    monkeypatch.chdir(tmp_path)
    for wrong, meant in (("my.yam", "my.yaml"), (str(tmp_path / "my.yam"), str(tmp_path / "my.yaml"))):
        with pytest.raises(SpecError, match=f"did you mean '{meant}'"):
            resolve(wrong)


def test_every_place_knows_the_same_checkpoint_rules():
    from calattn.engine.held import BEST
    from calattn.rules import RULES

    assert ("last", *BEST) == RULES
