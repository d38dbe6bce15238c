"""Swin's window attention through one fused kernel.

timm can do it and leaves it off by default. Window by window it forms no matrix of scores in memory, which is most of what Swin
spends its time on: on an H200 `benchmarks/window_attention.py` shows by how much. The results are those of the plain products
up to rounding; on a CPU neither is faster in training and the fused one is a quarter faster in prediction.
"""

from __future__ import annotations

import sys

from torch import nn


def fuse_window_attention(network: nn.Module) -> nn.Module:
    """The same network; every window attention of Swin in it is computed by `scaled_dot_product_attention` from now on."""
    swin = sys.modules.get("timm.models.swin_transformer")  # a network of it has loaded it; nothing else has to
    if swin is not None:
        for module in network.modules():
            if isinstance(module, swin.WindowAttention):
                module.fused_attn = True
    return network
