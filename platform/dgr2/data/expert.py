"""LambdaMART (XGBoost ``rank:ndcg``): the expert of the baseline row, and the grader behind the traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xgboost

from dgr2.config.schema import ExpertConfig
from dgr2.errors import DataError

SMALLEST = 20  # lists with a known target below which no expert can be fitted


class Expert:
    """A fitted booster over features of candidates."""

    def __init__(self, booster: xgboost.Booster) -> None:
        self.booster = booster

    @classmethod
    def fit(
        cls, features: np.ndarray, present: np.ndarray, places: np.ndarray, config: ExpertConfig, seed: int
    ) -> Expert:
        """Fit on lists with a known target.

        Args:
            features: ``[lists, width, features]``.
            present: ``[lists, width]``, False where a list is shorter.
            places: ``[lists]`` index of the target.
        """
        lists, width, _ = features.shape
        if lists < SMALLEST:
            raise DataError(
                f"only {lists} training lists contain their target, the expert needs {SMALLEST}: "
                "give more users, or more candidates (data.candidates)"
            )
        labels = (np.arange(width)[None, :] == places[:, None]).astype(np.float32)
        matrix = xgboost.DMatrix(
            features[present], label=labels[present], qid=np.repeat(np.arange(lists), present.sum(axis=1))
        )
        parameters = {
            "objective": "rank:ndcg",
            "eta": config.learning_rate,
            "max_depth": config.depth,
            "min_child_weight": 1.0,
            "subsample": 0.8,
            "colsample_bytree": 0.8,
            "lambdarank_pair_method": "topk",
            "lambdarank_num_pair_per_sample": width,
            "seed": seed,
            "nthread": 1,
        }
        return cls(xgboost.train(parameters, matrix, num_boost_round=config.trees))

    def score(self, features: np.ndarray) -> np.ndarray:
        """Scores ``[lists, width]`` of ``[lists, width, features]``; their order within a list matters."""
        flat = self.booster.predict(xgboost.DMatrix(features.reshape(-1, features.shape[-1])))
        return flat.reshape(features.shape[:-1]).astype(np.float64)

    def save(self, path: Path) -> None:
        """Write XGBoost's JSON."""
        self.booster.save_model(path)

    @classmethod
    def load(cls, path: Path) -> Expert:
        """Read XGBoost's JSON."""
        booster = xgboost.Booster()
        booster.load_model(path)
        booster.set_param({"nthread": 1})
        return cls(booster)
