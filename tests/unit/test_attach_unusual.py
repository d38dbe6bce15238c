"""`attach` on networks that are unusual but sound, and on those that it has to refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook

from calattn.attachment import CalibratedModel, attach


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
