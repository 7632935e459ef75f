"""Live figures of a Ray Train run, from the worker to the terminal that waits for it."""

from __future__ import annotations

import ray


@ray.remote(num_cpus=0)
class ProgressBoard:
    """Holds the figures that rank 0 posted since they were last taken."""

    def __init__(self) -> None:
        self._posts: list[tuple[str, int, dict[str, float]]] = []

    def post(self, phase: str, step: int, figures: dict[str, float]) -> None:
        """Add the figures of a step."""
        self._posts.append((phase, step, figures))

    def take(self) -> list[tuple[str, int, dict[str, float]]]:
        """All posts since the last call."""
        posts, self._posts = self._posts, []
        return posts
