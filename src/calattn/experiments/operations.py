"""Operations of the networks, recorded: a plan builds none of them."""

from __future__ import annotations

from calattn import data
from calattn.runs.spec import RunSpec

# By backbone and image size, as `count` gives them for three channels and ten classes; a test counts them again.
# Other channels and classes change less than 1 %.
RECORDED = {
    ("deit_small", 32): 2.841e9,
    ("deit_small", 224): 9.197e9,
    ("densenet121_cifar", 32): 1.777e9,
    ("resnet50_cifar", 32): 2.596e9,
    ("resnet50_cifar", 64): 1.038e10,
    ("resnet110_cifar", 32): 5.448e9,
    ("swin_small", 32): 3.490e8,
    ("swin_small", 224): 1.748e10,
    ("vit_base", 32): 1.120e10,
    ("vit_base", 224): 3.513e10,
    ("wide_resnet26_10_cifar", 32): 1.049e10,
    ("wide_resnet28_10_cifar", 32): 1.049e10,
    ("wide_resnet28_10_cifar", 64): 4.195e10,
}


def image_size(spec: RunSpec) -> int:
    """Pixels of a side: what the spec says, else the data set's own."""
    return spec.data.size or max(data.describe(spec.data.name).size or (224,))


def operations(spec: RunSpec) -> float:
    """Floating point operations of a forward pass of one image: recorded, or counted where they are not."""
    recorded = None if spec.model.options else RECORDED.get((spec.model.backbone, image_size(spec)))
    return count(spec) if recorded is None else recorded


def count(spec: RunSpec) -> float:
    """The same, counted on a network without memory or weights; about half a second."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from calattn.runs import build

    described, size = data.describe(spec.data.name), image_size(spec)
    with torch.device("meta"):
        network = build.build_model(
            spec, num_classes=described.num_classes or 1000, channels=described.channels, size=size
        ).eval()
        images = torch.zeros(1, described.channels, size, size)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network(images)
    return float(counter.get_total_flops())
