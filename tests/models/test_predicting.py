"""`calattn.predict` against the loop that one writes by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calattn
from calattn import Predictions
from calattn.backbones import create


@pytest.fixture
def data():
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(10, 3, 8, 8, generator=g), torch.arange(10) % 4)


def plain():
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(6, 4))


def by_hand(net, images):
    net.eval()
    with torch.no_grad():
        return net(images)


def test_a_plain_module(data):
    found = calattn.predict(plain(), DataLoader(data, batch_size=4), split="test", class_names=tuple("abcd"))
    torch.testing.assert_close(found.logits, by_hand(plain(), data.tensors[0]))
    assert torch.equal(found.labels, data.tensors[1])
    assert (found.scale, found.features, found.split, found.class_names) == (None, None, "test", tuple("abcd"))


@pytest.mark.parametrize("head", ["calattn", "dirichlet"])
def test_an_attached_model_keeps_its_parts(data, head):
    model = calattn.attach(plain(), head=head)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.normal_(std=0.3)
    found = calattn.predict(model, DataLoader(data, batch_size=4))
    torch.testing.assert_close(found.calibrated_logits, by_hand(model, data.tensors[0]))
    torch.testing.assert_close(found.features, by_hand(model.backbone[:-1], data.tensors[0]))
    if head == "calattn":
        torch.testing.assert_close(found.logits, by_hand(model.backbone, data.tensors[0]))
        assert found.scale.std() > 0
    assert calattn.predict(model, DataLoader(data, batch_size=4), features=False).features is None


def test_a_compiled_model_keeps_its_scale(data):
    model = calattn.attach(plain())
    assert calattn.predict(torch.compile(model, backend="eager"), DataLoader(data, batch_size=5)).scale is not None


def test_modes_come_back_layer_by_layer(data):
    net = plain().train()
    net[1].eval()  # a frozen BatchNorm
    mean = net[1].running_mean.clone()
    before = [module.training for module in net.modules()]
    seen = []
    hook = net[3].register_forward_hook(lambda layer, *_: seen.append((layer.training, torch.is_grad_enabled())))
    sizes = []
    found = calattn.predict(net, DataLoader(data, batch_size=4), on_batch=sizes.append)
    hook.remove()
    assert [module.training for module in net.modules()] == before
    assert seen == [(False, False)] * 3
    assert sizes == [4, 4, 2]
    assert not found.logits.requires_grad
    assert torch.equal(net[1].running_mean, mean)


def test_modes_come_back_after_an_error():
    net = plain().train()
    with pytest.raises(RuntimeError):
        calattn.predict(net, [(torch.zeros(1, 5, 8, 8), torch.zeros(1, dtype=torch.int64))])
    assert all(module.training for module in net.modules())


class HuggingFaceLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = plain()

    def forward(self, pixel_values):
        return SimpleNamespace(logits=self.net(pixel_values), hidden_states=None)


def test_dicts_and_outputs_with_logits(data):
    images, labels = data.tensors
    batches = [{"pixel_values": images[k : k + 5], "labels": labels[k : k + 5], "image_id": "x"} for k in (0, 5)]
    torch.testing.assert_close(calattn.predict(HuggingFaceLike(), batches).logits, by_hand(plain(), images))


def test_half_precision_is_widened(data):
    batches = [(images.bfloat16(), labels) for images, labels in DataLoader(data, batch_size=5)]
    found = calattn.predict(plain().bfloat16(), batches)
    assert found.logits.dtype == torch.float32
    assert torch.equal(found.logits, torch.cat([by_hand(plain().bfloat16(), x).float() for x, _ in batches]))


def test_a_device_moves_model_and_images(data):
    """The meta device stands for a GPU: what arrives there was moved."""
    net, seen = plain(), []
    net.register_forward_pre_hook(lambda _, given: seen.append(given[0].device.type))
    with pytest.raises((NotImplementedError, RuntimeError)):  # nothing can be copied back from it
        calattn.predict(net, DataLoader(data, batch_size=5), device="meta")
    assert seen == ["meta"]
    assert {parameter.device.type for parameter in net.parameters()} == {"meta"}


def test_outputs_are_copies(data):
    """A model that writes every batch into the same memory, as CUDA graphs do."""

    class Reusing(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.memory = plain(), torch.empty(5, 4)

        def forward(self, images):
            return self.memory.copy_(self.net(images))

    found = calattn.predict(Reusing(), DataLoader(data, batch_size=5))
    torch.testing.assert_close(found.logits, by_hand(plain(), data.tensors[0]))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "loader yields no batches"),
        ([torch.zeros(2, 3, 8, 8)], r"batch 0 of the loader is a tensor \[2, 3, 8, 8\]; it must be \(images, labels\)"),
        ([(torch.zeros(1, 3, 8, 8), [0], [7])], r"batch 0 of the loader is 3 things"),
        ([{"image": torch.zeros(1, 3, 8, 8), "labels": [0]}], "batch 0 of the loader is a dict of image, labels"),
        ([(torch.zeros(2, 3, 8, 8), torch.tensor([0]))], r"batch 0 of the loader has 2 images and labels \[1\]"),
    ],
)
def test_loaders_that_are_none(batches, message):
    with pytest.raises(ValueError, match=message):
        calattn.predict(plain(), batches)


def test_a_model_without_logits():
    with pytest.raises(ValueError, match=r"Sequential returns a tensor \[2, 6, 6, 6\]"):
        calattn.predict(plain()[:1], [(torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64))])


def test_from_a_timm_network_to_a_calibrator():
    g = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(12, 3, 32, 32, generator=g), torch.arange(12) % 3), batch_size=5)
    model = calattn.attach(create("vit_nano_patch8_32", num_classes=3))
    validation = calattn.predict(model, loader, split="validation")
    assert isinstance(validation, Predictions)
    assert calattn.posthoc.FrozenCalAttn(epochs=1).fit(validation).mean_.shape == validation.features.shape[1:]


def test_class_names_are_those_of_the_data_set():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    images = TensorDataset(torch.zeros(4, 3, 2, 2), torch.arange(4) % 3)
    images.classes = ["cat", "dog", "owl"]  # as torchvision's ImageFolder has
    for each in (images, torch.utils.data.Subset(images, [0, 1])):
        assert calattn.predict(net, DataLoader(each, batch_size=2)).class_names == ("cat", "dog", "owl")
    named = calattn.predict(net, DataLoader(images), class_names=("a", "b", "c"))
    assert named.class_names == ("a", "b", "c")
    images.classes = ["of another number"]
    assert calattn.predict(net, DataLoader(images)).class_names is None
