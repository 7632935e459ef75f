"""Parameters, gradients and optimizer state sharded over workers (FSDP2).

Each layer is a unit of its own, gathered for its forward and its backward; embeddings, head and the last norm
are the root's. Every worker must run the same number of forwards and backwards.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import Qwen3ForCausalLM

from dgr2.models.backbone import compute_hidden_states
from dgr2.models.transformer import Layer


def shard(model: Qwen3ForCausalLM) -> None:
    """Shard a model in place over all workers; gradients are summed over them, not averaged."""
    for layer in model.model.layers:
        _unit(layer, lambda layer, *arguments: Layer(layer).compute(*arguments))
    _unit(model, compute_hidden_states)


def _unit(module: nn.Module, compute: Any) -> None:
    fully_shard(module)
    assert isinstance(module, FSDPModule)
    module.compute = MethodType(compute, module)
    register_fsdp_forward_method(module, "compute")
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)  # gloo knows no other


def is_sharded(module: nn.Module) -> bool:
    """Whether :func:`shard` was applied."""
    return isinstance(module, FSDPModule)


def gathered(tree: Any) -> Any:
    """Whole tensors of a state: dictionaries and lists of tensors and numbers. All workers must call it."""
    if isinstance(tree, dict):
        return {key: gathered(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [gathered(value) for value in tree]
    return tree.full_tensor() if isinstance(tree, DTensor) else tree


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a whole optimizer state, each worker its shard."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def own(value: Any, parameter: Tensor) -> Any:
        if isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.shape == parameter.shape:
            return distribute_tensor(value, parameter.device_mesh, parameter.placements)
        return value

    shards = {
        index: {name: own(value, parameters[index]) for name, value in of_parameter.items()}
        for index, of_parameter in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": shards})
