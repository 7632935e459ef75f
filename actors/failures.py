"""What a failed call means: the actor was lost, its weights are old, or the data cannot be worked on.

Lost actors, nodes, objects and time-outs say nothing about the data: the call is worth trying elsewhere. What
the actor's own code raised is deterministic and would come again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import ray
from ray import exceptions as errors

from dgr2.errors import DGR2Error, RolloutInfraError, StaleWeightsError
from dgr2.rollout.capacity import free_text


class Failure(Enum):
    """Kind of a failed call."""

    LOST = "lost"
    """The actor, its node or an object is gone, or the call took too long: replace the actor."""
    UNAVAILABLE = "unavailable"
    """The actor could not be reached; it may come back."""
    STALE = "stale"
    """The actor refused: it holds other weights than those asked for."""
    DATA = "data"
    """The actor's code raised: the same call gives the same error."""


INFRASTRUCTURE = (
    errors.RayActorError,
    errors.NodeDiedError,
    errors.ObjectLostError,
    errors.OutOfMemoryError,
    errors.WorkerCrashedError,
    errors.LocalRayletDiedError,
    errors.GetTimeoutError,
    errors.RpcError,
    errors.RaySystemError,
    errors.ActorUnschedulableError,
    errors.ActorPlacementGroupRemoved,
    RolloutInfraError,
)


def classify(error: BaseException) -> Failure:
    """Kind of an error that ``ray.get`` raised."""
    cause = root(error)
    if isinstance(cause, StaleWeightsError):
        return Failure.STALE
    if isinstance(cause, errors.ActorUnavailableError):
        return Failure.UNAVAILABLE
    if isinstance(cause, errors.RayActorError) and cause.actor_init_failed:
        return Failure.DATA
    return Failure.LOST if isinstance(cause, INFRASTRUCTURE) else Failure.DATA


def root(error: BaseException) -> BaseException:
    """The error that the remote code raised, without the wrapping of a remote call."""
    while isinstance(error, errors.RayTaskError) and error.cause is not None:
        error = error.cause
    return error


def first_cause(error: BaseException) -> str:
    """One line on what went wrong first."""
    cause = root(error)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if isinstance(cause, DGR2Error) and lines:
        return " ".join(lines)
    if isinstance(cause, errors.RayError):  # a remote traceback ends with what was raised
        return lines[-1] if lines else type(cause).__name__
    return f"{type(cause).__name__}: {' '.join(lines)}"


def get(ref: ray.ObjectRef, timeout_s: float, what: str, asked: Mapping[str, float] | None = None) -> Any:
    """``ray.get`` with a time-out and errors of our own.

    Args:
        what: The wait, for the message of a time-out, such as "weights of version 3".
        asked: Resources that the callee needs, by Ray's names.

    Raises:
        RolloutInfraError: nothing came in time (the message says what was asked for and what is free), or the
            callee was lost.
        DGR2Error: whatever of ours the callee raised, as it raised it.
    """
    try:
        return ray.get(ref, timeout=timeout_s)
    except errors.GetTimeoutError:
        raise RolloutInfraError(f"{what}: no answer within {timeout_s:g} s; {free(asked or {})}") from None
    except Exception as error:
        cause = root(error)
        if isinstance(cause, DGR2Error):
            raise cause from error
        if classify(error) is Failure.DATA:
            raise
        raise RolloutInfraError(f"{what}: {first_cause(error)}") from error


def free(asked: Mapping[str, float]) -> str:
    """What was asked for and what the cluster has free now."""
    return free_text(asked or {"CPU": 0.0}, ray.available_resources(), ray.cluster_resources())
