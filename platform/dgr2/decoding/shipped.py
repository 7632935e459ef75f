"""Decoding parameters that travel in a student's checkpoint folder, beside its weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from dgr2.config.schema import Config, DecodeConfig, GridConfig
from dgr2.errors import StorageError
from dgr2.storage import read_json, write_json

FILE = "decoding.json"


@dataclass(frozen=True)
class Shipped:
    """How a checkpoint is meant to be decoded.

    Attributes:
        grid: Block grid it was trained on.
        decode: Thresholds and answer policy.
        alignment: Which hidden state predicts a masked position.
        candidates: Most candidates it can rank.
    """

    grid: GridConfig
    decode: DecodeConfig
    alignment: str
    candidates: int

    @classmethod
    def of(cls, config: Config) -> Shipped:
        """The parameters that a run's configuration gives."""
        return cls(config.grid, config.decode, config.cft.alignment, config.data.candidates)

    def save(self, folder: Path) -> None:
        """Write them beside the weights."""
        write_json(folder / FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Shipped:
        """Read them.

        Raises:
            StorageError: the file is missing, damaged or of another release.
        """
        raw = read_json(folder / FILE)
        try:
            return cls(
                GridConfig(**raw["grid"]),
                DecodeConfig(**raw["decode"]),
                raw["alignment"],
                int(raw["candidates"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{folder / FILE} does not fit this release ({error}): train the stage anew"
            ) from error
