"""Where a training worker computes."""

from __future__ import annotations

import ray.train.torch
import torch


def take_device(use_gpu: bool) -> torch.device:
    """The GPU that Ray gave to this worker, or its CPU; the process makes its tensors there from now on."""
    if not use_gpu:
        return torch.device("cpu")
    device = ray.train.torch.get_device()
    torch.cuda.set_device(device)
    torch.set_default_device(device)
    return device
