"""Strict, typed configuration: schema, presets, overrides, fingerprints."""

from __future__ import annotations

from dgr2.config.fields import keys, walk
from dgr2.config.fingerprint import fingerprint
from dgr2.config.load import documented_yaml, from_yaml, load_config, presets, to_yaml
from dgr2.config.schema import (
    NOT_FINGERPRINTED,
    CftConfig,
    Config,
    DataConfig,
    DecodeConfig,
    EvaluationConfig,
    ExpertConfig,
    GridConfig,
    ModelConfig,
    OptimConfig,
    PromptConfig,
    RayConfig,
    RetrievalConfig,
    RolloutConfig,
    SemanticIdConfig,
    TeacherConfig,
    TokenizerConfig,
    TraceConfig,
)
from dgr2.config.validate import validate, validate_inputs

__all__ = [
    "NOT_FINGERPRINTED",
    "CftConfig",
    "Config",
    "DataConfig",
    "DecodeConfig",
    "EvaluationConfig",
    "ExpertConfig",
    "GridConfig",
    "ModelConfig",
    "OptimConfig",
    "PromptConfig",
    "RayConfig",
    "RetrievalConfig",
    "RolloutConfig",
    "SemanticIdConfig",
    "TeacherConfig",
    "TokenizerConfig",
    "TraceConfig",
    "documented_yaml",
    "fingerprint",
    "from_yaml",
    "keys",
    "load_config",
    "presets",
    "to_yaml",
    "validate",
    "validate_inputs",
    "walk",
]
