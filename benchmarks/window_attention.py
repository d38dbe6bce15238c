"""Which way of computing Swin's window attention is fastest, block by block, on one GPU.

    python -m benchmarks.window_attention        # about two minutes on an H200

Two blocks (plain and shifted) of each stage of Swin-S at 224 px, forward and backward, bf16, compiled. `weight` is how many such
pairs the network has, so the last line is an estimate of the attention blocks' share of a step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import calattn  # noqa: F401  isort: skip  (before timm: it cures the import of torchvision)
import torch
import torch.nn.functional as F
from timm.models.swin_transformer import SwinTransformerBlock, WindowAttention
from torch import Tensor, nn

STAGES = ((56, 96, 3, 1), (28, 192, 6, 1), (14, 384, 12, 9), (7, 768, 24, 1))  # side, width, heads, pairs of blocks
PADDED = 64


def unfused(attention: WindowAttention, x: Tensor, mask: Tensor | None) -> Tensor:
    attention.fused_attn = False
    return WindowAttention.forward(attention, x, mask)


def fused(attention: WindowAttention, x: Tensor, mask: Tensor | None) -> Tensor:
    attention.fused_attn = True
    return WindowAttention.forward(attention, x, mask)


def _heads(attention: WindowAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    b, n, _ = x.shape
    q, k, v = attention.qkv(x).reshape(b, n, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def _bias(attention: WindowAttention, mask: Tensor | None, windows: int, extra: int) -> Tensor:
    """[1, windows or 1, heads, n + extra, n + extra]; keys beyond n are forbidden."""
    bias = attention._get_rel_pos_bias().unsqueeze(1)
    if mask is not None:
        bias = bias + mask.view(1, windows, 1, *mask.shape[1:])
    bias = F.pad(bias, (0, extra, 0, 0), value=-1e4)
    return F.pad(bias, (0, 0, 0, extra))


def padded(attention: WindowAttention, x: Tensor, mask: Tensor | None) -> Tensor:
    """Windows of 49 as windows of 64: aligned products, at the price of 1.7 times the softmax."""
    b, n, c = x.shape
    q, k, v = _heads(attention, F.pad(x, (0, 0, 0, PADDED - n)))
    windows = 1 if mask is None else mask.shape[0]
    scores = (q * attention.scale) @ k.transpose(-2, -1)
    scores = scores.view(-1, windows, *scores.shape[1:]) + _bias(attention, mask, windows, PADDED - n)
    out = scores.softmax(dim=-1).flatten(0, 1).to(v.dtype) @ v
    return attention.proj(out[:, :, :n].transpose(1, 2).reshape(b, n, c))


def padded_fused(attention: WindowAttention, x: Tensor, mask: Tensor | None) -> Tensor:
    b, n, c = x.shape
    q, k, v = _heads(attention, F.pad(x, (0, 0, 0, PADDED - n)))
    windows = 1 if mask is None else mask.shape[0]
    bias = _bias(attention, mask, windows, PADDED - n).to(q.dtype)
    bias = bias.expand(b // windows, -1, -1, -1, -1).flatten(0, 1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=attention.scale)
    return attention.proj(out[:, :, :n].transpose(1, 2).reshape(b, n, c))


def wide_scores(attention: WindowAttention, x: Tensor, mask: Tensor | None) -> Tensor:
    """As unfused, with the scores and the softmax's input kept in bf16 until the softmax itself."""
    b, n, c = x.shape
    q, k, v = _heads(attention, x)
    windows = 1 if mask is None else mask.shape[0]
    scores = torch.einsum("bhnd,bhmd->bhnm", q * attention.scale, k)
    bias = attention._get_rel_pos_bias().unsqueeze(1)
    bias = bias if mask is None else bias + mask.view(1, windows, 1, n, n)
    scores = scores.view(-1, windows, attention.num_heads, n, n).float() + bias
    out = torch.einsum("bhnm,bhmd->bnhd", scores.softmax(dim=-1).to(v.dtype).flatten(0, 1), v)
    return attention.proj(out.reshape(b, n, c))


def aligned(attention: WindowAttention, x: Tensor, mask: Tensor | None) -> Tensor:
    """As unfused, with 56 keys instead of 49: rows of scores begin at multiples of 16 bytes."""
    b, n, c = x.shape
    q, k, v = _heads(attention, x)
    extra = -n % 8
    k, v = F.pad(k, (0, 0, 0, extra)), F.pad(v, (0, 0, 0, extra))
    windows = 1 if mask is None else mask.shape[0]
    scores = (q * attention.scale) @ k.transpose(-2, -1)
    bias = _bias(attention, mask, windows, extra)[..., :n, :]
    scores = scores.view(-1, windows, *scores.shape[1:]) + bias
    out = scores.softmax(dim=-1).flatten(0, 1).to(v.dtype) @ v
    return attention.proj(out.transpose(1, 2).reshape(b, n, c))


WAYS: dict[str, Callable[[WindowAttention, Tensor, Tensor | None], Tensor]] = {
    "unfused": unfused,
    "fused": fused,
    "padded": padded,
    "padded_fused": padded_fused,
    "wide_scores": wide_scores,
    "aligned": aligned,
}


class Pair(nn.Module):
    """A plain and a shifted block, as the network alternates them."""

    def __init__(self, side: int, width: int, heads: int, way: str) -> None:
        super().__init__()
        shifts = (0, 0 if side == 7 else 3)
        self.blocks = nn.ModuleList(
            SwinTransformerBlock(width, (side, side), num_heads=heads, window_size=7, shift_size=shift)
            for shift in shifts
        )
        for block in self.blocks:
            attention = block.attn
            attention.forward = lambda x, mask=None, attention=attention: WAYS[way](attention, x, mask)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def milliseconds(pair: Pair, x: Tensor, *, rounds: int = 10, bursts: int = 5) -> float:
    """Of one step: the fastest burst."""
    compiled = torch.compile(pair)

    def step() -> None:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            compiled(x).float().square().mean().backward()

    for _ in range(3):
        step()
    found = []
    for _ in range(bursts):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(rounds):
            step()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - started) / rounds)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--stage", type=int, choices=range(4), action="append")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU")
    totals = dict.fromkeys(arguments.way or WAYS, 0.0)
    for place in arguments.stage or (2, 0, 1, 3):  # the third stage first: it has 18 of the 24 blocks
        side, width, heads, weight = STAGES[place]
        for way in totals:
            torch._dynamo.reset()
            x = torch.randn(arguments.batch, side, side, width, device="cuda", requires_grad=True)
            found = milliseconds(Pair(side, width, heads, way).cuda(), x)
            totals[way] += weight * found
            print(
                f"stage {place + 1}  {way:<13} {found:7.2f} ms a pair, {weight * found:7.2f} ms of a step", flush=True
            )
    print({way: round(total, 1) for way, total in totals.items()})


if __name__ == "__main__":
    main()
