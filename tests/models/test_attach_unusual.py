"""`attach` on networks that are unusual but sound, on those that it has to refuse, and under timm's own functions."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import timm
import timm.optim
import torch
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook

from calattn.backbones import create
from calattn.models.adapters import Adapter, LayerAdapter
from calattn.models.attach import CalibratedModel, attach


def mlp(*after: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 7), *after)


def images(n: int = 2) -> torch.Tensor:
    return torch.randn(n, 3, 2, 2, generator=torch.Generator().manual_seed(n))


class Square(nn.Module):
    """Returns its logits transposed: the memory is the layer's output, the logits are not."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.flatten(1)).T


@pytest.fixture(params=["layer", "network", "everywhere"])
def hooked(request: pytest.FixtureRequest) -> Iterator[CalibratedModel]:
    net = mlp()
    register = {
        "layer": net[3].register_full_backward_hook,
        "network": net.register_full_backward_hook,
        "everywhere": register_module_full_backward_hook,
    }[request.param]
    handle = register(lambda *_: None)
    yield attach(net)
    handle.remove()


def test_full_backward_hooks(hooked: CalibratedModel) -> None:
    """They make the network return a view of what its layer gave."""
    out = hooked.output(images())
    assert torch.equal(out.calibrated_logits, hooked.backbone(images()))
    out.calibrated_logits.sum().backward()
    assert hooked.backbone[3].weight.grad is not None


@pytest.mark.usefixtures("untyped")
def test_export_with_full_backward_hooks(hooked: CalibratedModel) -> None:
    program = torch.export.export(hooked, (images(),), strict=False)
    torch.testing.assert_close(program.module()(images()), hooked(images()))


def test_a_transposed_output_is_no_output() -> None:
    with pytest.raises(ValueError, match="logits of Square are not the output of 'fc'"):
        attach(Square())(images())


class Masked(nn.Module):
    """A mask comes first, the images are its keyword `x`; `backbone` is a keyword too."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 7)

    def forward(self, mask: torch.Tensor | None = None, x: torch.Tensor | None = None, backbone: float = 1.0):
        z = x.flatten(1) * backbone
        return self.fc(z if mask is None else z * mask)


@pytest.mark.usefixtures("untyped")  # Signature.bind of Python 3.11 fails on a keyword `x` here
def test_arguments_reach_the_backbone_as_they_were_given() -> None:
    net, x, mask = Masked(), images(), torch.arange(12.0)
    model = attach(net)
    assert torch.equal(model(x=x), net(x=x))
    assert torch.equal(model(mask, x), net(mask, x))
    assert torch.equal(model(None, x), net(None, x))
    assert torch.equal(model(mask, x, 2.0), net(mask, x, 2.0))
    assert torch.equal(model(mask, x=x, backbone=2.0), net(mask, x, 2.0))
    assert torch.equal(model.output(mask, x).calibrated_logits, net(mask, x))


@pytest.mark.usefixtures("untyped")  # Signature.bind of Python 3.11 fails on a keyword `x` here
def test_arguments_reach_an_adapter_and_timm_as_they_were_given() -> None:
    net, x, mask = Masked(), images(), torch.arange(12.0)
    adapter = Adapter(features=lambda _, mask, x: x.flatten(1) * mask, classifier=lambda m, z: m.fc(z), num_features=12)
    model = attach(net, adapter=adapter)
    assert torch.equal(model(mask, x), net(mask, x))
    assert torch.equal(model(mask, x=x), net(mask, x))
    vit = create("vit_nano_patch8_32", num_classes=7).eval()
    small, seen = torch.randn(2, 3, 32, 32), torch.eye(17, dtype=torch.bool)
    expected = vit.forward_head(vit.forward_features(small, seen))
    assert torch.equal(attach(vit)(small, seen), expected)
    assert torch.equal(attach(vit)(x=small, attn_mask=seen), expected)


@pytest.mark.usefixtures("untyped")
def test_two_arguments_compile_and_export() -> None:
    model, x, mask = attach(Masked()), images(), torch.arange(12.0)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(mask, x), model(mask, x))
    torch.testing.assert_close(compiled(mask, x=x), model(mask, x))
    for strict in (False, True):
        program = torch.export.export(model, (mask, x), strict=strict)
        torch.testing.assert_close(program.module()(mask, x), model(mask, x))


def test_a_hook_that_is_half_registered() -> None:
    """torch notes a hook first and that it takes keywords after; another thread may run the layer in between."""
    net, failures = mlp(), []
    layer = net[3]

    def elsewhere() -> None:
        try:
            layer(torch.zeros(1, 8))
        except TypeError as error:
            failures.append(error)

    def interrupt(*_: object) -> None:
        noted = dict(layer._forward_hooks_with_kwargs)
        assert noted
        layer._forward_hooks_with_kwargs.clear()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        layer._forward_hooks_with_kwargs.update(noted)

    net[1].register_forward_hook(interrupt)
    assert attach(net).output(images()).features.shape == (2, 8)
    assert not failures


class TwoNames(nn.Module):
    """One layer, registered as `a`, as `b` and deeper as `deep.0`; only the second name is used."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(12, 7)
        self.b, self.deep = self.a, nn.Sequential(self.a)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(x.flatten(1))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("classifier", [None, "a", "b", "deep.0"])
def test_a_layer_of_several_names(classifier: str | None) -> None:
    net = TwoNames()
    model = attach(net, classifier=classifier)
    assert torch.equal(model(images()), net(images()))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images()), net(images()))
    assert net.a is net.b is net.deep[0]
    for strict in (False, True):
        program = torch.export.export(model, (images(),), strict=strict)
        torch.testing.assert_close(program.module()(images()), net(images()))


class Holder(nn.Module):
    """No wrapper: it only calls its part `module`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.module = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x / 2)


def test_a_part_called_module() -> None:
    net = Holder(mlp())
    with pytest.raises(ValueError, match=r"attach to its \.module \(Sequential\).*if it is no wrapper, name the layer"):
        attach(net)
    assert torch.equal(attach(net, classifier="module.3")(images()), net(images()))
    net.norm = nn.Identity()  # who holds other parts too is no wrapper
    assert torch.equal(attach(net)(images()), net(images()))
    for wrapped, name in ((nn.DataParallel(mlp()), "module"), (torch.compile(mlp()), "_orig_mod")):
        with pytest.raises(ValueError, match=rf"attach to its \.{name} \(Sequential\), then wrap$"):
            attach(wrapped, classifier=f"{name}.3")


@pytest.mark.parametrize("end", [nn.Softmax(1), nn.Sigmoid()])
def test_probabilities_are_refused(end: nn.Module) -> None:
    with pytest.raises(ValueError, match="if the network ends in a softmax, take it off: the head needs logits; else"):
        attach(mlp(end))(images())
    nested = nn.Sequential(nn.Sequential(mlp(), nn.Identity()), end)
    beside = nn.Sequential(mlp(end), nn.Identity())
    for net, name in ((mlp(end), "3"), (nested, "0.0.3"), (beside, "0.3")):
        with pytest.raises(ValueError, match=rf"a {type(end).__name__} after '{name}': take it off"):
            attach(net, classifier=name)
    told = attach(mlp(end), adapter=LayerAdapter(layer="3", num_features=8))
    assert torch.equal(told(images()), told.backbone(images()))


def test_log_softmax_is_taken_for_logits() -> None:
    model, bare = attach(mlp(nn.LogSoftmax(1)), classifier="3"), mlp()
    with torch.no_grad():
        model.head.mlp.fc2.bias.add_(1)
    out = model.output(images())
    assert (out.scale > 1.1).all()
    torch.testing.assert_close(out.probs, (bare(images()) / out.scale[:, None]).softmax(1))


def test_a_softmax_within_is_no_end() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(12, 8), nn.Softmax(1)), nn.Linear(8, 7))
    assert torch.equal(attach(net)(images()), net(images()))
    assert torch.equal(attach(net, classifier="2")(images()), net(images()))


def test_a_layer_alone_is_to_be_wrapped() -> None:
    linear = nn.Linear(16, 7)
    for classifier in (None, "fc"):
        with pytest.raises(ValueError, match=r"Linear is itself the layer that classifies: wrap it.*nn\.Sequential"):
            attach(linear, classifier=classifier)
    x = torch.randn(2, 16)
    assert torch.equal(attach(nn.Sequential(linear))(x), linear(x))


@pytest.mark.parametrize("name", ["foo", "3.weight", "3.foo", ""])
def test_an_adapter_names_a_layer_that_exists(name: str) -> None:
    with pytest.raises(ValueError, match=rf"Sequential has no layer '{name}'; its last linear ones are 1, 3"):
        attach(mlp(), adapter=LayerAdapter(layer=name, num_features=8))
    with pytest.raises(ValueError, match=rf"Sequential has no layer '{name}'; its last ones are 0, 1"):
        attach(nn.Sequential(nn.Conv2d(3, 7, 2), nn.Flatten()), adapter=LayerAdapter(layer=name, num_features=3))


@pytest.mark.usefixtures("untyped")
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


def test_attach_takes_features_by_position():
    assert attach(create("vit_nano_patch8_32", num_classes=10), "concat", 16, False).features == "concat"


@pytest.mark.usefixtures("untyped")
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
