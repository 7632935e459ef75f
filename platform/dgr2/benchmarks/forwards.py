"""Where the time of batch 1 goes: prefill, trace and answer; inside and outside the model; the roofline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from dgr2.benchmarks.figures import Figures, Summary, exact
from dgr2.decoding.decoder import Decoder
from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.rows import Row
from dgr2.models.inference import InferenceModel
from dgr2.telemetry import time_turns

PHASES = ("prefill", "trace", "answer")


@dataclass
class Spent:
    """Seconds of one decode of batch 1.

    Attributes:
        phases: By phase; the forward that opens the answer counts to it.
        model: Inside the model's forwards and its head.
        whole: In all.
        bound: Least time of the forwards by the roofline.
    """

    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    model: float = 0.0
    whole: float = 0.0
    bound: float = 0.0
    forwards: int = 0


@dataclass(frozen=True)
class Roofline:
    """A device at its best: ``flops`` a second in a large product, ``bytes`` a second in a large copy."""

    flops: float
    bytes: float

    @classmethod
    def measure(cls, dtype: torch.dtype, device: torch.device, repeats: int = 5) -> Roofline:
        """Best of some repeats."""
        side = 8192 if device.type == "cuda" else 1024
        a = torch.rand(side, side, device=device).to(dtype)
        long = torch.zeros(2**25, device=device, dtype=dtype)
        calls = {"product": lambda _: _finished(a @ a), "copy": lambda _: _finished(long.clone())}
        timed = time_turns(calls, repeats)
        seconds = {name: min(turns.seconds) for name, turns in timed.items()}
        moved = 2 * long.numel() * long.element_size()
        return cls(2 * side**3 / seconds["product"], moved / seconds["copy"])

    def seconds(self, inference: InferenceModel, width: int, span: int) -> float:
        """Least time of a forward of one row: arithmetic, or every weight and cached token read once.

        Args:
            width: Tokens that go in.
            span: Tokens of the cache that are seen.
        """
        layers = inference.transformer.layers
        kv_size, q_size = (n * layers[0].head_dim for n in (layers[0].kv_heads, layers[0].heads))
        weights = inference.head.numel() + sum(
            w.numel() for layer in layers for w in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )
        flops = 2 * width * weights + 4 * width * span * len(layers) * q_size
        cached = 2 * span * len(layers) * kv_size
        moved = (weights + cached) * inference.head.element_size()
        return max(flops / self.flops, moved / self.bytes)


def _finished(result: torch.Tensor) -> None:
    if result.is_cuda:
        torch.cuda.synchronize()


class Stopwatch(Decoder):
    """A decoder that notes where the time of a decode of batch 1 goes."""

    roofline: Roofline
    spent: Spent
    shapes: list[tuple[int, np.ndarray]]
    """Width and limits of every forward."""

    @classmethod
    def of(cls, decoder: Decoder) -> Self:
        """A stopwatch on the model of a decoder."""
        watch = super().of(decoder)
        weight = decoder.model.lm_head.weight
        watch.roofline = Roofline.measure(weight.dtype, weight.device)
        return watch

    def time(self, prompt: list[int], count: int, policy: DecodePolicy) -> Spent:
        """Decode one prompt."""
        self.spent, self.shapes, start = Spent(), [], time.perf_counter()
        (trajectory,) = self.decode([prompt], [count], policy)
        self.spent.whole, self.spent.forwards = time.perf_counter() - start, trajectory.forwards
        assert self._inference is not None
        self.spent.bound = sum(
            self.roofline.seconds(self._inference, width, int(limits.max())) for width, limits in self.shapes
        )
        return self.spent

    def _forward(self, inference: InferenceModel, active: dict[int, Row], slots: list[int]) -> None:
        trajectory = active[slots[0]].trajectory
        first, start = not trajectory.forwards, time.perf_counter()
        super()._forward(inference, active, slots)
        phase = "prefill" if first else "trace" if trajectory.answer_start is None else "answer"
        self.spent.phases[phase] += time.perf_counter() - start

    def _cache(self, slots: int, context: int) -> InferenceModel:
        known, inference = self._inference, super()._cache(slots, context)
        if inference is not known:
            forward, head = inference.forward, inference.log_probabilities

            def watched(slots: Any, ids: Any, positions: Any, limits: Any, *rest: Any) -> torch.Tensor:
                self.shapes.append((ids.shape[1], limits))  # what they cost at least is computed afterwards
                return self._in_model(forward, slots, ids, positions, limits, *rest)

            inference.forward = watched  # type: ignore[method-assign]
            inference.log_probabilities = partial(self._in_model, head)  # type: ignore[method-assign]
        return inference

    def _in_model(self, call: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        result = call(*arguments)
        if isinstance(result, torch.Tensor):
            _finished(result)
        self.spent.model += time.perf_counter() - start
        return result


def forward_figures(
    decoder: Decoder,
    prompts: Sequence[list[int]],
    counts: Sequence[int],
    policies: Mapping[str, DecodePolicy],
    summary: Summary,
) -> Figures:
    """Milliseconds by phase and outside the model, by policy; the last one's speed-ups over the first."""
    watch = Stopwatch.of(decoder)

    def decode(policy: DecodePolicy, turn: int) -> Spent:
        return watch.time(prompts[turn], counts[turn], policy)

    timed = time_turns({name: partial(decode, policy) for name, policy in policies.items()}, len(prompts))
    found = {name: turns.results for name, turns in timed.items()}
    figures: Figures = {
        "device_gflops": exact(watch.roofline.flops / 1e9, "GFLOP/s"),
        "device_bandwidth": exact(watch.roofline.bytes / 1e9, "GB/s"),
    }
    for name, spent in found.items():
        for phase in PHASES:
            figures[f"{name}_{phase}_ms"] = summary.median([1e3 * s.phases[phase] for s in spent], "ms")
        outside = [s.whole - s.model for s in spent]
        each = [s.forwards for s in spent]
        figures[f"{name}_overhead_ms"] = summary.median(
            [1e3 * o / n for o, n in zip(outside, each, strict=True)], "ms"
        )
        figures[f"{name}_overhead_share"] = summary.median(
            [o / s.whole for o, s in zip(outside, spent, strict=True)], "share"
        )
        figures[f"{name}_forward_ms"] = summary.median([1e3 * s.model / s.forwards for s in spent], "ms")
        figures[f"{name}_roofline_ms"] = summary.median([1e3 * s.bound / s.forwards for s in spent], "ms")
    first, *_, last = found
    for phase in PHASES[1:]:
        if not any(s.phases[phase] for s in found[first]):
            continue  # random weights open no answer
        figures[f"{last}_{phase}_speedup_b1"] = summary.ratio(
            [s.phases[phase] for s in found[first]], [s.phases[phase] for s in found[last]]
        )
    return figures
