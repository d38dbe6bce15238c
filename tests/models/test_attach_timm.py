"""An attached model is a drop-in for timm; adapters that cannot work are refused."""

from __future__ import annotations

import pytest
import timm
import timm.optim
import torch
from torch import nn

from calattn import Adapter, attach
from calattn.backbones import create

pytestmark = pytest.mark.usefixtures("untyped")


def test_timm_finds_the_preprocessing_and_the_layers_of_an_attached_model():
    backbone = timm.create_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", pretrained=False)
    model = attach(backbone)
    assert timm.data.resolve_model_data_config(model) == timm.data.resolve_model_data_config(backbone)
    assert model.num_classes == 1000
    bare, ours = (timm.optim.create_optimizer_v2(m, "adamw", lr=1e-3, layer_decay=0.7) for m in (backbone, model))
    scales = [{round(group["lr_scale"], 6) for group in optimizer.param_groups} for optimizer in (bare, ours)]
    assert scales[0] == scales[1]
    assert len(scales[0]) > 2
    named = {id(p): n for n, p in model.named_parameters()}
    full = [g for g in ours.param_groups if g["lr_scale"] == 1.0]
    assert any(named[id(p)].startswith("head.") for g in full for p in g["params"])
    model.set_grad_checkpointing(True)
    assert backbone.grad_checkpointing
    model.set_grad_checkpointing(False)
    assert not backbone.grad_checkpointing
    with pytest.raises(AttributeError):
        _ = model.nonsense


def test_attach_takes_features_by_position_and_refuses_what_makes_no_sense():
    bare = create("vit_nano_patch8_32", num_classes=10)
    assert attach(bare, "concat", 16, False).features == "concat"
    with pytest.raises(ValueError, match="already has a head"):
        attach(attach(bare))
    with pytest.raises(ValueError, match=r"attach to its \.module"):
        attach(nn.DataParallel(bare))
    with pytest.raises(ValueError, match="'relaxed_softmax' has no hidden layer"):
        attach(bare, head="relaxed_softmax", hidden=64)


@pytest.mark.parametrize(
    ("features", "classifier", "message"),
    [
        (
            lambda m, x: m[:-1](x).unsqueeze(1),
            lambda m, z: m[-1](z),
            r"features returned shape \[4, 1, 8\], not \[b, 8\]",
        ),
        (lambda m, x: m[:-1](x)[:, :5], lambda m, z: m[-1](z), r"features returned shape \[4, 5\]"),
        (lambda m, x: {"z": m[:-1](x)}, lambda m, z: m[-1](z), "features returned dict"),
        (lambda m, x: m[:-1](x), lambda _, z: z, r"classifier returned shape \[4, 8\], not \[b, 3\]"),
    ],
)
def test_adapters_are_checked(features, classifier, message):
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    adapter = Adapter(features=features, classifier=classifier, num_features=8, num_classes=3)
    with pytest.raises(ValueError, match=message):
        attach(net, adapter=adapter)(torch.zeros(4, 3, 2, 2))
