"""Sharding: weights, gradients and optimiser state divided among processes (torch's FSDP2), and made whole again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning_fabric.strategies import ModelParallelStrategy
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn, optim
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

_REMEDY = "use --strategy ddp"
# Those tested: they treat every weight by itself. Adafactor, for one, would mix shards and whole tensors.
OPTIMIZERS = (optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.RMSprop)


class ShardedStrategy(ModelParallelStrategy):
    """Fabric's strategy for `--strategy fsdp`: one shard of everything a process, on GPUs and on CPUs.

    Not Fabric's FSDPStrategy: that one is torch's older FSDP, which flattens the weights and needs GPUs.
    """

    def __init__(self) -> None:
        super().__init__(shard)

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """Shards the module and points the optimisers, which must be new, at the shards: these are new parameters."""
        _check_statistics(module)
        for optimizer in optimizers:
            _check_optimizer(optimizer)
        names = {parameter: name for name, parameter in module.named_parameters()}
        module = self.setup_module(module)
        shards = dict(module.named_parameters())
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["params"] = [shards[names[parameter]] for parameter in group["params"]]
        return module, optimizers, scheduler


def shard(step: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Divides the step's parameters among all processes, in place: every block is gathered when its turn comes."""
    if not all(parameter.is_contiguous() for parameter in step.parameters()):
        raise ValueError(f"train.channels_last=true does not work with --strategy fsdp; leave it out, or {_REMEDY}")
    # Fabric's mesh has two dimensions, the second for tensor parallelism; here all processes divide the data.
    flat = init_device_mesh(mesh.device_type, (mesh.size(),))
    for block in blocks(step):
        fully_shard(block, mesh=flat)
    # By default the root stays whole after a forward pass, and a validation would leave it so.
    fully_shard(step, mesh=flat, reshard_after_forward=True)
    return step


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The repeated parts of a network: the innermost entries of Sequentials and ModuleLists that have parts themselves.

    >>> block = nn.ModuleDict({"norm": nn.LayerNorm(2), "linear": nn.Linear(2, 2)})
    >>> len(list(blocks(nn.Sequential(nn.Linear(2, 2), nn.Sequential(block, block)))))
    1
    """
    seen: set[nn.Module] = set()
    for holder in module.modules():
        if not isinstance(holder, nn.Sequential | nn.ModuleList):
            continue
        for part in holder:
            if part not in seen and _is_block(part) and not any(True for _ in blocks(part)):
                seen.add(part)
                yield part


def whole(tree: Any, *, keep: bool) -> Any:
    """The tree with every shard replaced by its whole on the CPU (by None unless `keep`); all processes call it."""

    def gathered(shard: DTensor) -> Tensor | None:
        value = shard.full_tensor().detach()
        return value.cpu() if keep else None

    return apply_to_collection(tree, DTensor, gathered)


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def divided_like(value: Any, like: Tensor) -> Any:
    """A whole tensor in the layout of `like`: what an optimiser keeps of a parameter, or the parameter's own new value.

    Numbers (step counts) stay as they are.
    """
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.ndim == 0:
        return value
    # Everybody has read the whole from disk: no need to send it (src_data_rank=None).
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _is_block(part: nn.Module) -> bool:
    container = isinstance(part, nn.Sequential | nn.ModuleList)
    return not container and any(True for _ in part.children()) and any(True for _ in part.parameters())


def _check_optimizer(optimizer: Optimizer) -> None:
    assert not optimizer.state
    if type(optimizer) not in OPTIMIZERS:
        names = ", ".join(kind.__name__.lower() for kind in OPTIMIZERS)
        raise ValueError(
            f"optimizer.name: --strategy fsdp works with {names}, not {type(optimizer).__name__}; {_REMEDY}"
        )


def _check_statistics(module: nn.Module) -> None:
    """DDP sends the first process's running statistics to all; here each keeps its own, which validation would mix."""
    for name, part in module.named_modules():
        own = isinstance(part, nn.modules.batchnorm._NormBase) and not isinstance(part, nn.SyncBatchNorm)
        if own and part.running_mean is not None:
            raise ValueError(
                f"{name} ({type(part).__name__}) keeps running statistics, which --strategy fsdp does not share; "
                f"set train.sync_batchnorm=true (GPUs only), or {_REMEDY}"
            )
