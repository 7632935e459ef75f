"""What can go wrong, by who can mend it.

A ``UserError`` is mended by changing the command, its configuration or its data: the command line shows it
as one line and exits with 2. Every other ``DGR2Error`` exits with 1.
"""

from __future__ import annotations


class DGR2Error(Exception):
    """Root of the hierarchy."""

    exit_code = 1


class UserError(DGR2Error):
    """Something the caller asked for cannot be; the message says what to change."""

    exit_code = 2


class ConfigError(UserError):
    """A configuration key or value that is unknown, of the wrong type, or contradicts another."""


class DataError(UserError):
    """Input data that is missing, empty or inconsistent."""


class CapacityError(UserError):
    """More resources asked for than the cluster has; the message says what was asked for and what is free."""


class StorageError(DGR2Error):
    """A run folder, checkpoint or weight file that is missing, incomplete or damaged."""


class RolloutInfraError(DGR2Error):
    """A rollout failed for a reason outside its data (worker lost, time-out): it may be tried again."""


class RolloutDataError(DGR2Error):
    """A rollout failed because of its data: trying again gives the same failure."""


class StaleWeightsError(DGR2Error):
    """Weights older than the caller allows."""
