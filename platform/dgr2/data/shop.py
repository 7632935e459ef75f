"""The embedded shop: a seeded catalogue and users whose next item follows from known probabilities.

A user goes through categories by a routine that depends on the last two of them, keeps to favourite
brands and a price tier, and often takes a companion of the last item. A share of purchases is noise.
The same function draws the data and scores candidates for the oracle, so the oracle is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgr2.data.source import Item, Source
from dgr2.errors import DataError

DEPARTMENTS = {
    "Kitchen": ("Kettles", "Knives", "Pans"),
    "Garden": ("Spades", "Seeds", "Hoses"),
    "Office": ("Pens", "Lamps", "Folders"),
    "Sports": ("Balls", "Ropes", "Mats"),
}
BRANDS = (
    *("Alder", "Birk", "Corvo", "Delmar", "Ember", "Fjord"),
    *("Gale", "Harlow", "Iris", "Juno", "Kestrel", "Lumen"),
)
QUALITIES = ("Basic", "Classic", "Prime")
WORDS = ("amber", "blue", "coral", "dark", "eco", "fine", "green", "heavy", "ivory", "light", "mini", "soft")
LENGTHS = (5, 14)  # shortest and longest sequence
BRANDS_PER_CATEGORY = 6
COMPANIONS = 3
SMALLEST = 20  # items; more than the longest sequence, since nobody buys an item twice


@dataclass(frozen=True)
class ShopShape:
    """Strength of every kind of structure; shares and logits, without units."""

    noise: float = 0.08
    companion: float = 0.4
    first: float = 0.62
    second: float = 0.26
    brand: float = 2.6
    tier: float = 1.1
    popularity: float = 0.7


@dataclass(frozen=True)
class Catalogue:
    """Item attributes, arrays ``[items]`` (index 0 is item 1), and what leads where.

    ``routine[a, b]`` is the distribution of the next category after categories a then b;
    ``companions[item]`` are indices of items that go well after it.
    """

    items: list[Item]
    category: np.ndarray
    brand: np.ndarray
    tier: np.ndarray
    popularity: np.ndarray
    routine: np.ndarray
    companions: np.ndarray


@dataclass(frozen=True)
class Latents:
    """What the generator knows of the users: ``brand`` ``[users, brands]`` logits, ``tier`` ``[users]``."""

    brand: np.ndarray
    tier: np.ndarray


def build_shop(users: int, items: int, seed: int, shape: ShopShape | None = None) -> Source:
    """A shop of that size; the same arguments give the same shop."""
    if users < 1 or items < SMALLEST:
        raise DataError(f"the shop needs data.items >= {SMALLEST} and users, found {items} and {users}")
    shape = shape or ShopShape()
    catalogue = _catalogue(items, shape, np.random.default_rng([seed, 1]))
    latents = _latents(users, np.random.default_rng([seed, 2]))
    sequences = _sequences(catalogue, latents, shape, np.random.default_rng([seed, 3]))
    oracle = ShopOracle(catalogue, latents, shape)
    return Source(catalogue.items, list(range(1, users + 1)), sequences, oracle)


def _catalogue(count: int, shape: ShopShape, rng: np.random.Generator) -> Catalogue:
    leaves = [(department, leaf) for department, names in DEPARTMENTS.items() for leaf in names]
    kinds = min(len(leaves), max(4, count // 10))
    category = np.arange(count) % kinds
    offered = np.stack([rng.permutation(len(BRANDS))[:BRANDS_PER_CATEGORY] for _ in range(kinds)])
    brand = offered[category, (np.arange(count) // kinds) % BRANDS_PER_CATEGORY]
    tier = rng.integers(0, len(QUALITIES), count)
    base = rng.uniform(8, 40, kinds)
    price = np.round(base[category] * 2.0**tier * rng.lognormal(0, 0.1, count), 2)
    items = []
    for i in range(count):
        department, leaf = leaves[category[i]]
        words = " ".join(WORDS[j] for j in rng.integers(0, len(WORDS), 2))
        title = f"{BRANDS[brand[i]]} {QUALITIES[tier[i]]} {words} {leaf}"
        items.append(Item(i + 1, title, BRANDS[brand[i]], (department, leaf), float(price[i])))
    routine = np.full((kinds, kinds, kinds), (1 - shape.first - shape.second) / kinds)
    for before in range(kinds):
        for last in range(kinds):
            likely = _likely_kinds(before, last, kinds, rng)
            routine[before, last, likely[0]] += shape.first
            routine[before, last, likely[1]] += shape.second
    companions = _companions(category, brand, routine, rng)
    popularity = shape.popularity * rng.normal(size=count)
    return Catalogue(items, category, brand, tier, popularity, routine, companions)


def _likely_kinds(before: int, last: int, kinds: int, rng: np.random.Generator) -> tuple[int, int]:
    """Two categories that follow; half of the time the pair is the same whatever came before."""
    fixed = ((last + 1) % kinds, (last + 5) % kinds)
    if rng.random() < 0.5:
        return fixed
    other = int(rng.integers(kinds))
    return other, fixed[0]


def _companions(
    category: np.ndarray, brand: np.ndarray, routine: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    kinds = len(routine)
    companions = np.zeros((len(category), COMPANIONS), dtype=np.int64)
    for i in range(len(category)):
        usual = [(category[i] + 1) % kinds, (category[i] + 5) % kinds]
        weight = np.where(np.isin(category, usual), 1.0, 0.02)
        weight = weight * np.where(brand == brand[i], 2.0, 1.0)
        weight[i] = 0
        companions[i] = rng.choice(len(category), COMPANIONS, replace=False, p=weight / weight.sum())
    return companions


def _latents(users: int, rng: np.random.Generator) -> Latents:
    strength = np.array([1.0, 0.7] + [0.0] * (len(BRANDS) - 2))
    brand = np.stack([strength[np.argsort(rng.permutation(len(BRANDS)))] for _ in range(users)])
    return Latents(brand, rng.integers(0, len(QUALITIES), users))


def next_probabilities(
    catalogue: Catalogue,
    latents: Latents,
    shape: ShopShape,
    users: np.ndarray,
    last: np.ndarray,
    before: np.ndarray,
    seen: np.ndarray,
) -> np.ndarray:
    """Distribution of the next item.

    Args:
        users: ``[n]`` user indices.
        last, before: ``[n]`` indices of the latest item and the one before it.
        seen: ``[n, items]`` items that cannot come again.

    Returns:
        ``[n, items]``, rows sum to 1.
    """
    mismatch = np.abs(latents.tier[users][:, None] - catalogue.tier[None, :])
    taste = shape.brand * latents.brand[users][:, catalogue.brand] - shape.tier * mismatch
    liking = np.exp(taste + catalogue.popularity[None, :]) * ~seen
    kinds = catalogue.routine.shape[-1]
    member = catalogue.category[:, None] == np.arange(kinds)[None, :]
    within = liking / np.maximum((liking @ member)[:, catalogue.category], 1e-12)
    routine = catalogue.routine[catalogue.category[before], catalogue.category[last]]
    by_routine = _normalised(routine[:, catalogue.category] * within)
    paired = np.zeros_like(liking)
    np.put_along_axis(paired, catalogue.companions[last], 1.0, axis=1)
    by_companion = paired * liking
    total = by_companion.sum(axis=1, keepdims=True)
    by_companion = np.where(total > 0, by_companion / np.maximum(total, 1e-12), by_routine)
    by_chance = _normalised(np.exp(catalogue.popularity)[None, :] * ~seen)
    return shape.noise * by_chance + (1 - shape.noise) * (
        shape.companion * by_companion + (1 - shape.companion) * by_routine
    )


def _normalised(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum(axis=1, keepdims=True)


def _sequences(
    catalogue: Catalogue, latents: Latents, shape: ShopShape, rng: np.random.Generator
) -> list[list[int]]:
    users = np.arange(len(latents.tier))
    lengths = rng.integers(LENGTHS[0], LENGTHS[1] + 1, len(users))
    seen = np.zeros((len(users), len(catalogue.category)), dtype=bool)
    picks = np.zeros((len(users), LENGTHS[1]), dtype=np.int64)
    for step in range(LENGTHS[1]):
        if step < 2:
            weights = _normalised(np.exp(catalogue.popularity)[None, :] * ~seen)
        else:
            last, before = picks[:, step - 1], picks[:, step - 2]
            weights = next_probabilities(catalogue, latents, shape, users, last, before, seen)
        draws = rng.random((len(users), 1))
        picks[:, step] = np.minimum((weights.cumsum(axis=1) < draws).sum(axis=1), seen.shape[1] - 1)
        seen[users, picks[:, step]] = True
    return [(picks[u, : lengths[u]] + 1).tolist() for u in range(len(users))]


class ShopOracle:
    """The generator's own probability of a candidate, given the history and the user's latents."""

    def __init__(self, catalogue: Catalogue, latents: Latents, shape: ShopShape) -> None:
        self.catalogue, self.latents, self.shape = catalogue, latents, shape

    def score(self, users: np.ndarray, histories: list[list[int]], candidates: np.ndarray) -> np.ndarray:
        """See ``dgr2.data.source.Oracle``."""
        seen = np.zeros((len(histories), len(self.catalogue.category)), dtype=bool)
        for row, history in enumerate(histories):
            seen[row, np.array(history) - 1] = True
        last = np.array([history[-1] - 1 for history in histories])
        before = np.array([history[-2] - 1 for history in histories])
        weights = next_probabilities(self.catalogue, self.latents, self.shape, users, last, before, seen)
        picked = np.take_along_axis(weights, np.maximum(candidates - 1, 0), axis=1)
        return np.where(candidates > 0, picked, 0.0)
