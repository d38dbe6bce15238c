"""Attached models and fitted calibrators as ONNX files: ONNX Runtime says what torch says, for batches of any size."""

from __future__ import annotations

import onnxruntime
import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from calattn.backbones import create
from calattn.models.attach import CalibratedModel, attach
from tests.posthoc.test_modules import inputs
from tests.posthoc.test_protocol import NAMES, build, made_up

pytestmark = pytest.mark.usefixtures("untyped")

WITHOUT = ("isotonic",)  # looks its values up by torch.searchsorted
SWIN = {"img_size": 32, "window_size": 4, "depths": (2,), "num_heads": (3,), "embed_dim": 24}
NETWORKS = {
    "vit": lambda: create("vit_nano_patch8_32", num_classes=10, depth=1),
    "cnn": lambda: create("resnet8_cifar", num_classes=10),
    "timm's swin": lambda: timm.create_model("swin_tiny_patch4_window7_224", num_classes=10, **SWIN),
    "torchvision's resnet": lambda: torchvision.models.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10),
}


class Parts(nn.Module):
    """As in docs/attach.md."""

    def __init__(self, model: CalibratedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        out = self.model.output(images)
        return out.probs, out.scale


def awake(network: nn.Module, **options: object) -> CalibratedModel:
    """With a head that has been trained: no two images have the same scale."""
    torch.manual_seed(0)
    model = attach(network, **options).eval()
    for parameter in model.head.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(count))


def assert_the_same_in_onnx(module: nn.Module, example: tuple[Tensor, ...], *others: tuple[Tensor, ...]) -> None:
    shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in example)
    with torch.no_grad():
        program = torch.onnx.export(module, example, dynamo=True, dynamic_shapes=shapes, verbose=False)
        session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
        names = [each.name for each in session.get_inputs()]
        for other in others:
            found = session.run(None, {name: value.numpy() for name, value in zip(names, other, strict=True)})
            want = module(*other)
            for ours, theirs in zip(want if isinstance(want, tuple) else (want,), found, strict=True):
                torch.testing.assert_close(torch.from_numpy(theirs), ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_calibrated_logits(name: str) -> None:
    model = awake(NETWORKS[name]())
    assert len(set(model.output(images(5)).scale.tolist())) == 5
    assert_the_same_in_onnx(model, (images(2),), (images(1),), (images(5),))


@pytest.mark.parametrize("features", ["patch_mean", "concat"])
def test_probabilities_and_scale_beside_them(features: str) -> None:
    model = Parts(awake(NETWORKS["vit"](), features=features)).eval()
    assert_the_same_in_onnx(model, (images(2),), (images(1),), (images(5),))


@pytest.mark.parametrize("head", ["relaxed_softmax", "dirichlet", "none"])
def test_other_heads(head: str) -> None:
    assert_the_same_in_onnx(Parts(awake(NETWORKS["cnn"](), head=head)).eval(), (images(2),), (images(5),))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT])
def test_calibrators(name: str) -> None:
    module = build(name).fit(made_up(0)).module().eval()
    assert_the_same_in_onnx(module, inputs(name, made_up(1, n=5)), inputs(name, made_up(2, n=9)))


@pytest.mark.parametrize("name", WITHOUT)
def test_calibrators_that_have_no_onnx_form(name: str) -> None:
    """docs/calibrate.md names them; when this fails, torch has learned it."""
    module = build(name).fit(made_up(0)).module().eval()
    with pytest.raises(torch.onnx.OnnxExporterError, match="searchsorted"):
        assert_the_same_in_onnx(module, inputs(name, made_up(1, n=5)))
