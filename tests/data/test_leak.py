"""Held-out items reach nothing that is trained on, and a training list does not know its user's future."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from datasets import load_from_disk

from dgr2.data.crossfit import Fold, cross_fit
from dgr2.data.source import Source
from dgr2.data.splits import fold_of_users, training_part
from dgr2.data.statistics import ItemTable

FILES = (
    "semantic_ids.json",
    "expert.json",
    "builder.json",
)
ARRAYS = (
    "retriever/similarity.npz",
    "statistics/follow.npz",
    "statistics/counts.npz",
    "statistics/items.npz",
    "tokens.npz",
)


def _other_endings(source: Source) -> Source:
    """The same users with other validation and test items."""
    rng = np.random.default_rng(5)
    size = len(source.items)
    sequences = []
    for sequence in source.sequences:
        fresh = [i for i in rng.permutation(size) + 1 if i not in sequence][:2]
        sequences.append(sequence[:-2] + [int(i) for i in fresh])
    return replace(source, sequences=sequences)


def test_perturbed_held_out_items_change_nothing_upstream(prepared, prepare_source):
    other = prepare_source(_other_endings(prepared.source), prepared.config)
    for name in ("instances/train", "midtrain", "items"):
        first, second = (load_from_disk(str(run.data / name)).to_dict() for run in (prepared, other))
        assert first == second, name
    for name in FILES:
        assert (prepared.data / name).read_bytes() == (other.data / name).read_bytes(), name
    for name in ARRAYS:
        with np.load(prepared.data / name) as first, np.load(other.data / name) as second:
            assert first.files == second.files
            assert all(
                np.array_equal(first[key], second[key], equal_nan=_is_float(first[key])) for key in first
            )
    for path in prepared.tokenizer.iterdir():
        assert path.read_bytes() == (other.tokenizer / path.name).read_bytes(), path.name
    first, second = (load_from_disk(str(run.data / "instances/test")) for run in (prepared, other))
    assert first["target"][:] != second["target"][:]


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f"


def test_perturbed_test_item_leaves_validation_lists(prepared, prepare_source):
    sequences = [s[:-1] + [next(i for i in range(1, 61) if i not in s)] for s in prepared.source.sequences]
    other = prepare_source(replace(prepared.source, sequences=sequences), prepared.config)
    first, second = (load_from_disk(str(run.data / "instances/valid")).to_dict() for run in (prepared, other))
    assert first == second


def test_cross_fit_never_saw_its_users(prepared):
    """Changing a user's latest training item leaves the fold's fits and the user's earlier lists alone."""
    config, items = prepared.config, ItemTable.build(prepared.source.items)
    config = replace(config, traces=replace(config.traces, short_share=0.0))
    training = training_part(prepared.source.sequences)
    user = next(u for u, s in enumerate(training) if len(s) >= 6)
    changed = [list(s) for s in training]
    changed[user][-1] = next(i for i in range(1, 61) if i not in training[user])
    number = int(fold_of_users(len(training), config.data.folds, config.seed)[user])
    first, second = (cross_fit(t, items, config, lambda: None)[number] for t in (training, changed))
    assert (first.retriever.similarity != second.retriever.similarity).nnz == 0
    assert (first.statistics.follow != second.statistics.follow).nnz == 0
    assert np.array_equal(first.statistics.popularity, second.statistics.popularity)
    cuts = _lists(first, user)
    assert len(cuts) >= 2
    assert all(np.array_equal(cuts[length], _lists(second, user)[length]) for length in list(cuts)[:-1])


def _lists(fold: Fold, user: int) -> dict[int, np.ndarray]:
    rows = np.flatnonzero(fold.requests.users == user)
    joined = {len(fold.requests.histories[r]): fold.features[r] for r in rows}
    return dict(sorted(joined.items()))
