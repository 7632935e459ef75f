"""What types cannot say: ranges, choices, and keys that must agree with each other."""

from __future__ import annotations

from pathlib import Path

from dgr2.config.fields import walk
from dgr2.config.schema import Config
from dgr2.errors import ConfigError

CHOICES = {
    "data.source": ("shop", "folder"),
    "retrieval.model": ("bm25", "tfidf", "cosine"),
    "semantic_ids.method": ("residual_kmeans", "residual_vq"),
    "traces.generator": ("evidence",),
    "answer.ids": ("label",),
    "cft.alignment": ("in_place", "shift"),
    "decode.answer_policy": ("threshold", "prefix", "conflict"),
    "decode.commit": ("threshold", "left_to_right", "entropy", "factor", "static"),
    "opd.divergence": ("forward_kl", "reverse_kl", "jsd"),
    "rl.decode": ("native", "policy"),
}
# Whole numbers are at least 1 unless they, or the last part of their name, stand here.
LEAST = {
    "seed": 0,
    "data.users": 20,
    "data.items": 20,
    "data.candidates": 2,
    "data.folds": 2,
    "data.max_test_instances": 0,
    "semantic_ids.codes": 2,
    "prompt.buckets": 2,
    "traces.grades": 2,
    "teacher.midtrain.steps": 0,
    "grid.block_size": 2,
    "ray.max_failures": 0,
    "rollout.retries": 0,
    "tune.max_concurrent": 0,
    "tune.grace": 0,
    "tune.reduction": 2,
    "serve.remember_prompts": 0,
    "micro_batch_tokens": 0,
}
# Other numbers are at least 0 unless they stand here: (above, at most).
RANGES = {
    "retrieval.recency": (0.0, 1.0),
    "decode.threshold": (0.0, 1e3),
    "decode.answer_threshold": (0.0, 1e3),
    "teacher.answer_weight": (0.0, 1e6),
    "rl.reward_weights": (-1e6, 1e6),
    "rl.temperature": (0.0, 1e6),
    "opd.beta": (0.0, 1.0),
    "opd.teacher_temperature": (0.0, 1e6),
    "ray.timeout_s": (0.0, 1e6),
    "serve.timeout_s": (0.0, 1e6),
    "rollout.timeout_s": (0.0, 1e6),
    "rollout.cpus_per_worker": (0.0, 1e4),
    "rollout.teacher_cpus": (0.0, 1e4),
    "rollout.train_cpus": (0.0, 1e4),
}
SHARES = (
    "short_share",
    "warmup",
    "slip_share",
    "full_mask_share",
    "full_mask_share_answer",
    "anchor_mask_share",
    "first_state_share",
)
LABELS = 26  # candidates are named <A>..<Z>
EVIDENCE = 8  # kinds of evidence that a prompt shows


def validate(cfg: Config) -> None:
    """Refuse values out of range and combinations that cannot work; looks at no file.

    Raises:
        ConfigError: the first one found, with the key to change.
    """
    for path, value in walk(cfg):
        for each in value if isinstance(value, list) else [value]:
            _value(path, each)
    _data(cfg)
    _model(cfg)
    _grid(cfg)
    _training(cfg)
    _decode(cfg)


def _value(path: str, value: object) -> None:
    name = path.rsplit(".", 1)[-1]
    if path in CHOICES and value not in CHOICES[path]:
        raise ConfigError(f"'{path}' must be one of {', '.join(CHOICES[path])}, not {value!r}")
    least = LEAST.get(path, LEAST.get(name, 1))
    if type(value) is int and value < least:
        raise ConfigError(f"'{path}' must be at least {least}, not {value}")
    if type(value) is float:
        above, most = RANGES.get(path, (None, None))
        if above is not None and most is not None and not above < value <= most:
            raise ConfigError(f"'{path}' must be above {above:g} and at most {most:g}, not {value:g}")
        if value < 0 and path not in RANGES:
            raise ConfigError(f"'{path}' must not be negative, and is {value:g}")
        if (name in SHARES or path == "evaluation.sweep") and value > 1:
            raise ConfigError(f"'{path}' must lie between 0 and 1, not at {value:g}")


def validate_inputs(cfg: Config) -> None:
    """Refuse a configuration whose input folders are not there.

    Raises:
        ConfigError: naming the key and the folder.
    """
    if cfg.data.source == "folder":
        if not cfg.data.path:
            raise ConfigError(
                "'data.path' is not set: give data.path=FOLDER with items.jsonl[.gz] and sequences.txt[.gz]"
            )
        folder = Path(cfg.data.path)
        if not folder.is_dir():
            raise ConfigError(f"'data.path' names no folder: {folder}")
        for name in ("items.jsonl", "sequences.txt"):
            if not any((folder / f"{name}{end}").is_file() for end in ("", ".gz")):
                raise ConfigError(f"'data.path' lacks {name} or {name}.gz: {folder}")
    if cfg.model.init and not (Path(cfg.model.init) / "config.json").is_file():
        raise ConfigError(f"'model.init' names no Hugging Face folder (no config.json): {cfg.model.init}")


def _data(cfg: Config) -> None:
    if cfg.data.candidates > LABELS:
        raise ConfigError(f"'data.candidates' must be at most {LABELS}, one letter a candidate")
    if cfg.data.source == "shop" and cfg.data.candidates >= cfg.data.items:
        raise ConfigError("'data.candidates' must be smaller than 'data.items'")
    if cfg.traces.evidence > EVIDENCE:
        raise ConfigError(f"'traces.evidence' must be at most {EVIDENCE}, the kinds of evidence in a prompt")


def _model(cfg: Config) -> None:
    m = cfg.model
    if m.init:
        return  # its own shape counts
    if m.hidden % (2 * m.heads):
        raise ConfigError(
            f"'model.hidden' must be an even multiple of 'model.heads' ({m.heads}), not {m.hidden}"
        )
    if m.heads % m.kv_heads:
        raise ConfigError(
            f"'model.heads' must be a multiple of 'model.kv_heads' ({m.kv_heads}), not {m.heads}"
        )


def _grid(cfg: Config) -> None:
    size, curriculum = cfg.grid.block_size, cfg.cft.block_curriculum
    if not curriculum or curriculum[-1] != size:
        raise ConfigError(
            f"'cft.block_curriculum' must end with 'grid.block_size' ({size}), not {curriculum}"
        )
    for step in curriculum:
        if size % step:
            raise ConfigError(f"'cft.block_curriculum' must hold divisors of {size} only, and {step} is none")
    # Label, evidence and grade of every candidate, then the end of the trace.
    trace, least = cfg.grid.trace_blocks * size, (2 + cfg.traces.evidence) * cfg.data.candidates + 1
    if trace < least:
        raise ConfigError(
            f"a trace of {trace} tokens cannot weigh {cfg.data.candidates} candidates ({least} tokens): "
            "raise 'grid.trace_blocks' or lower 'data.candidates' or 'traces.evidence'"
        )
    if cfg.model.context <= trace + size:
        raise ConfigError(f"'model.context' must exceed a response of {trace + size} tokens")


def _training(cfg: Config) -> None:
    if cfg.teacher.reason_weight >= cfg.teacher.answer_weight:
        raise ConfigError("'teacher.reason_weight' must be below 'teacher.answer_weight'")
    optims = {
        "teacher.midtrain": cfg.teacher.midtrain,
        "teacher.sft": cfg.teacher.sft,
        "cft.optim": cfg.cft.optim,
    }
    for path, optim in optims.items():
        if optim.batch_size < cfg.ray.num_workers:
            raise ConfigError(f"'{path}.batch_size' must be at least 'ray.num_workers'")
        if optim.micro_batch_size > optim.batch_size:
            raise ConfigError(f"'{path}.micro_batch_size' must not exceed '{path}.batch_size'")

    for name, loop in (("opd", cfg.opd), ("rl", cfg.rl)):
        if loop.optim.micro_batch_tokens:
            raise ConfigError(
                f"'{name}.optim.micro_batch_tokens' must be 0: a loop trains on the chunks that it decoded"
            )


def _decode(cfg: Config) -> None:
    decode = cfg.decode
    tau = decode.commit in ("threshold", "left_to_right")
    if decode.threshold > 1 and tau:
        raise ConfigError(
            f"'decode.threshold' is a probability for commit rule '{decode.commit}': at most 1, "
            f"not {decode.threshold:g}"
        )
    if decode.answer_threshold > 1 and (tau or decode.answer_policy != "threshold"):
        raise ConfigError(f"'decode.answer_threshold' must be at most 1, not {decode.answer_threshold:g}")
