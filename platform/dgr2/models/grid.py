"""The block grid: the one definition that data, training, decoding and RL share.

Block ``b`` covers response positions ``[b * size, (b + 1) * size)``; position 0 of the response is the
first token after the prompt, so the grid is anchored at the *end of the prompt*, whatever its length.
Position 0 of a block is its *anchor*: it comes from the next-token logit of the clean, causal stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from dgr2.errors import ConfigError


@dataclass(frozen=True)
class BlockGrid:
    """Blocks of ``size`` tokens over the response."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"block size {self.size} is not positive")

    def blocks(self, length: int) -> int:
        """Number of blocks that cover ``length`` response tokens."""
        return -(-length // self.size)

    def padded(self, length: int) -> int:
        """``length`` rounded up to whole blocks."""
        return self.blocks(length) * self.size

    def refine(self, size: int) -> BlockGrid:
        """The same grid cut into smaller blocks; their boundaries include those of this grid.

        Raises:
            ConfigError: when ``size`` does not divide the block size.
        """
        if size < 1 or self.size % size:
            raise ConfigError(f"block size {size} does not divide the grid's {self.size}")
        return BlockGrid(size)
