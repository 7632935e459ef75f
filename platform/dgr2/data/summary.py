"""The figures of the prepare stage."""

from __future__ import annotations

from typing import Any

import numpy as np

from dgr2.data.lists import Columns, Part
from dgr2.data.semantic_ids import SemanticIds
from dgr2.data.source import Source


def summarise(source: Source, ids: SemanticIds, parts: dict[str, Part]) -> dict[str, Any]:
    """Sizes, hit rate, id uniqueness, acceptance of the rejection sampling, prompt lengths, first figures."""
    train, test = parts["train"].columns, parts["test"].columns
    lengths = [len(prompt) for part in parts.values() for prompt in part.columns["prompt_ids"]]
    quantiles = np.percentile(lengths, [50, 90, 99, 100]) if lengths else np.zeros(4)
    return {
        "users": len(source.sequences),
        "items": len(source.items),
        "interactions": sum(len(sequence) for sequence in source.sequences),
        "train_lists": len(train["user"]),
        "train_lists_known": sum(target > 0 for target in train["target"]),
        "valid_instances": len(parts["valid"].columns["user"]),
        "test_instances": len(test["user"]),
        "hit_rate": parts["test"].kept / max(parts["test"].asked, 1),
        "semantic_id_uniqueness": ids.uniqueness,
        "semantic_id_uniqueness_quantised": ids.quantised_uniqueness,
        "rejection_acceptance": parts["train"].kept / max(parts["train"].asked, 1),
        "prompt_tokens": dict(zip(("p50", "p90", "p99", "max"), quantiles.tolist(), strict=True)),
        "response_tokens": max((len(response) for response in train["response_ids"]), default=0),
        "pre_rank": recall([list(range(len(c))) for c in test["candidates"]], test),
        "lambdamart": recall(test["order"], test),
        "oracle": recall([np.argsort(-np.array(o), kind="stable").tolist() for o in test["oracle"]], test)
        if test["oracle"] and all(test["oracle"])
        else None,
    }


def recall(orders: list[list[int]], columns: Columns) -> dict[str, float]:
    """Share of lists whose target is among the first 1, 3, 5 of an order of candidate indices."""
    ranks = [
        order.index(listed.index(target))
        for order, listed, target in zip(orders, columns["candidates"], columns["target"], strict=True)
    ]
    return {f"recall@{k}": float(np.mean([rank < k for rank in ranks])) if ranks else 0.0 for k in (1, 3, 5)}
