"""What the online loops share: actors, a trainer that pulls, step after step at one weight version.

Synchronous and deterministic: step s decodes with version s, its update publishes version s + 1, and nothing
is decoded before that. Chunks, micro-batches and draws are keyed by (step, chunk), so a replaced worker or a
resumed stage changes no result. When the trainer fails, the store is closed with the first cause and the
controller stops at its next wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import ray

from dgr2.actors.placement import require_capacity
from dgr2.actors.rollout_worker import RolloutGroup, RolloutModel
from dgr2.actors.sample_queue import SampleQueue
from dgr2.actors.teacher import TeacherGroup, TeacherModel
from dgr2.actors.weight_store import Weights, WeightStore
from dgr2.data.tokenizer import load_tokenizer
from dgr2.data.vocabulary import Vocabulary
from dgr2.decoding.policy import DecodePolicy
from dgr2.decoding.trajectory import Trajectory
from dgr2.errors import DGR2Error
from dgr2.evaluation.answer import parse_answer
from dgr2.jobs.run import StageContext, current_fingerprint
from dgr2.models.backbone import load_model
from dgr2.rollout.capacity import loop_demands
from dgr2.rollout.teacher import tokenizer_fingerprint
from dgr2.rollout.weights import checksum, export_weights
from dgr2.telemetry.emitter import Emitter
from dgr2.training.online import STREAMS, MicroBatch, OnlineBatch, online_optim, online_worker
from dgr2.training.session import ray_session
from dgr2.training.trainer import TrainJob, train


class OnlineLoop:
    """Actors and trainer of one online stage; a context manager that leaves nothing behind.

    Args:
        context: The stage.
        kind: ``opd`` or ``rl``: the objective.
        stage: Name of the stage; its checkpoint and its log go by it.
        init: Checkpoint the student starts from.
        teacher: Checkpoint of the frozen teacher, where one scores.
        writer: Checkpoint that writes the rollouts instead of the student (off-policy comparison), or None.
    """

    def __init__(
        self,
        context: StageContext,
        kind: str,
        stage: str,
        init: Path,
        teacher: Path | None = None,
        writer: Path | None = None,
    ) -> None:
        self.context, self.kind, self.stage, self.config = context, kind, stage, context.config
        self.optim = online_optim(kind, self.config)
        self._init, self._teacher, self._writer = init, teacher, writer
        tokenizer = load_tokenizer(context.run.tokenizer)
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, self.config.data.candidates)
        self._tokenizer_print = tokenizer_fingerprint(tokenizer)
        self.seconds: dict[str, float] = {}
        self._stack = ExitStack()
        self._failure: BaseException | None = None
        self._extra: dict[str, float] = {}
        self._frozen: tuple[ray.ObjectRef, str] | None = None
        self._restarts = 0
        self.emitter = Emitter(run=context.run.path.name, stage=stage)

    def __enter__(self) -> OnlineLoop:
        with self._stack:
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort(error)
        self._stack.close()

    def _start(self) -> None:
        run, config, rollout = self.context.run, self.config, self.config.rollout
        settings = config.ray
        self._stack.enter_context(ray_session(settings))
        require_capacity(loop_demands(rollout, settings.num_workers, rollout.train_cpus))
        self._queues = [SampleQueue.remote(rollout.queue_bound) for _ in range(settings.num_workers)]
        self._store = WeightStore.remote()
        for actor in (*self._queues, self._store):
            self._stack.callback(ray.kill, actor)
        model = RolloutModel(
            self._writer or self._init,
            run.tokenizer,
            config.grid,
            config.cft.alignment,
            config.data.candidates,
        )
        self._rollouts = self._stack.enter_context(RolloutGroup(model, rollout))
        self._teachers: TeacherGroup | None = None
        if self._teacher is not None:
            spec = TeacherModel(self._teacher, self._teacher, self._tokenizer_print, config.data.candidates)
            self._teachers = self._stack.enter_context(TeacherGroup(spec, rollout))
        self._trainer = threading.Thread(target=self._train, daemon=True)
        self._trainer.start()
        self._stack.callback(self._trainer.join, rollout.timeout_s)

    def _train(self) -> None:
        run, config = self.context.run, self.config
        job = TrainJob(
            kind=self.kind,
            name=current_fingerprint(run, config, self.stage),
            data=run.data,
            tokenizer=run.tokenizer,
            init=self._init,
            storage=run.train(self.stage),
            output=run.checkpoint(self.stage),
            worker=online_worker,
            extra={"queues": self._queues, "store": self._store},
            cpus=config.rollout.train_cpus,
            max_failures=0,  # the controller would not follow a restart; the stage itself resumes
        )
        try:
            train(job, config)  # figures come with the weights
        except BaseException as error:  # handed to the controller, which is waiting on the store
            self._abort(error)

    def _abort(self, error: BaseException) -> None:
        """Wake everyone who waits, with the first cause."""
        if self._failure is None:
            self._failure = error
        cause = DGR2Error(str(self._failure) or type(self._failure).__name__)
        if ray.is_initialized():
            for queue in self._queues:
                queue.close.remote(cause)
            self._store.close.remote(cause)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase of the loop."""
        start = time.monotonic()
        yield
        spent = time.monotonic() - start
        self.seconds[name] = self.seconds.get(name, 0.0) + spent
        self.emitter.add("dgr2_phase_seconds", spent, phase=name)

    def steps(self) -> Iterator[int]:
        """Steps still to do, each entered with every rollout worker at the step's weight version.

        The body calls :meth:`submit` once.
        """
        timeout = self.config.rollout.timeout_s
        if self._teachers is not None:
            self._teachers.ready()
        first = ray.get(self._store.wait_for.remote(0, timeout), timeout=2 * timeout).version
        with self.context.progress.task(self.stage, total=self.optim.steps, done=first) as bar:
            for step in range(first, self.optim.steps):
                with self.phase("weights"):
                    self._rollouts.arm(self._writer_weights(step) or self._fetch(step))
                yield step
                with self.phase("train"):
                    weights = ray.get(self._store.wait_for.remote(step + 1, timeout), timeout=2 * timeout)
                figures = weights.figures | self._extra
                self._emit(step + 1, figures)
                bar.advance(1, **{name: figures[name] for name in ("loss", "reward") if name in figures})
                seconds = {f"seconds/{name}": spent for name, spent in self.seconds.items()}
                self.context.metrics.log(self.stage, step + 1, figures | seconds)
                self.seconds.clear()
        self._trainer.join(timeout)
        if self._failure is not None:
            raise self._failure

    def _fetch(self, step: int) -> Weights:
        timeout = self.config.rollout.timeout_s
        return ray.get(self._store.fetch.remote(step), timeout=timeout)

    def _writer_weights(self, step: int) -> Weights | None:
        """The off-policy writer's weights, which stay the same under every version."""
        if self._writer is None:
            return None
        if self._frozen is None:
            state = export_weights(load_model(self._writer))
            self._frozen = (ray.put(state), checksum(state))
        return Weights(step, *self._frozen)

    def rollouts(
        self,
        key: tuple[int, ...],
        prompts: list[list[int]],
        counts: list[int],
        policy: DecodePolicy,
        chunk: int,
    ) -> list[Trajectory]:
        """Decode prompts at the current weights; the key is the place in the run, such as (step, attempt)."""
        with self.phase("rollout"):
            return self._rollouts.generate(
                (STREAMS[self.kind], *key), prompts, counts, policy, self.config.seed, chunk
            )

    def describe(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """Figures of a step's rollouts, also sent to Prometheus."""
        emitted = sum(t.emitted(self.vocabulary) for t in trajectories)
        forwards = sum(t.forwards for t in trajectories)
        answers = [parse_answer(t.tokens, self.vocabulary, t.candidates) for t in trajectories]
        figures = {
            "tokens_per_forward": emitted / forwards,
            "valid": sum(a.valid for a in answers) / len(answers),
        }
        self.emitter.set("dgr2_tokens_per_forward", figures["tokens_per_forward"])
        self.emitter.set("dgr2_validity_share", figures["valid"])
        self.emitter.set(
            "dgr2_rollout_tokens_per_second", emitted / max(self.seconds.get("rollout", 0.0), 1e-3)
        )
        return figures

    def score(self, prompts: list[list[int]], trajectories: list[Trajectory], top_k: int, chunk: int) -> list:
        """The frozen teacher's top-k log-probabilities and tail of each response."""
        assert self._teachers is not None
        with self.phase("teacher"):
            return self._teachers.score(prompts, [t.tokens for t in trajectories], top_k, chunk)

    def submit(self, step: int, micro: list[MicroBatch], tokens: float, figures: dict[str, float]) -> None:
        """Hand a step's rollouts to the trainer; ``figures`` go into the log with those of its update."""
        self._extra = figures
        batch = OnlineBatch(step, micro, max(tokens, 1.0))
        timeout = self.config.rollout.timeout_s
        block = ray.put(batch)
        ray.get([queue.put.remote(block, timeout) for queue in self._queues], timeout=2 * timeout)

    def _emit(self, version: int, figures: dict[str, float]) -> None:
        """Figures of a step to Prometheus; synchronous rollouts are never stale."""
        names = {
            "loss": "dgr2_loss",
            "grad_norm": "dgr2_gradient_norm",
            "reward": "dgr2_reward_mean",
            "ratio": "dgr2_ratio_mean",
            "clipped": "dgr2_clip_share",
            "opd" if self.kind == "opd" else "kl": "dgr2_divergence",
        }
        self.emitter.set_all({metric: figures[name] for name, metric in names.items() if name in figures})
        self.emitter.set("dgr2_weight_version", version)
        self.emitter.set("dgr2_staleness", 0)
        depth = ray.get([q.figures.remote() for q in self._queues], timeout=self.config.rollout.timeout_s)
        self.emitter.set("dgr2_queue_depth", max(d["size"] for d in depth))
        restarts = self._rollouts.pool.replacements
        self.emitter.add("dgr2_worker_restarts", restarts - self._restarts)
        self._restarts = restarts
