"""Every setting of a run: the only place of a default, and its documentation.

The string under a field is what ``dgr2 config`` prints beside it. Presets (``presets/*.yaml``) change
values, never meanings. Sections are named after what they steer; a stage's fingerprint covers the
sections it reads (see ``dgr2.jobs.run``).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DataConfig:
    source: str = "shop"
    """Where interactions come from: ``shop`` (embedded, seeded generator) or ``folder``."""
    path: str = ""
    """Folder with items.jsonl[.gz] and sequences.txt[.gz]; needed when source is ``folder``."""
    users: int = 4000
    """Shop only: number of simulated users."""
    items: int = 240
    """Shop only: number of catalogue items."""
    candidates: int = 10
    """K, the number of candidates the first stage hands to the re-ranker."""
    folds: int = 8
    """Folds of the cross-fit: a training list never comes from a retriever that saw its user."""
    max_train_lists: int = 40000
    """Upper bound on training lists; a seeded sample is taken when there are more."""
    max_test_instances: int = 0
    """Upper bound on test instances (0 keeps all); a seeded sample, for quick trials only."""


@dataclass
class RetrievalConfig:
    model: str = "bm25"
    """First stage of ``implicit``: ``bm25``, ``tfidf`` or ``cosine`` item-to-item neighbours."""
    neighbours: int = 200
    """Neighbours kept per item."""
    recency: float = 0.7
    """Weight of a history item is recency**age, age 0 being the latest."""


@dataclass
class SemanticIdConfig:
    method: str = "residual_kmeans"
    """Residual quantiser: ``residual_vq`` (EMA codebooks) or ``residual_kmeans`` (light)."""
    levels: int = 2
    """Quantised levels; one more level resolves collisions."""
    codes: int = 16
    """Codes a level, the resolving level included."""
    dimensions: int = 32
    """Dimensions of the item embedding (SVD of TF-IDF text joined with SVD of co-purchases)."""


@dataclass
class ExpertConfig:
    trees: int = 120
    """Boosting rounds of the LambdaMART expert (XGBoost ``rank:ndcg``)."""
    depth: int = 4
    """Depth of a tree."""
    learning_rate: float = 0.08
    """Shrinkage of a round."""


@dataclass
class PromptConfig:
    history: int = 8
    """Latest history items shown to the model."""
    field_tokens: int = 2
    """A text field (category, brand) is cut to this many tokens."""
    buckets: int = 8
    """Levels of a bucketed evidence field."""


@dataclass
class TraceConfig:
    generator: str = "evidence"
    """Writer of the reasoning traces; ``evidence`` needs no language model."""
    grader_depth: int = 2
    """Depth of the grader's trees: LambdaMART on what the prompt shows of a candidate."""
    grades: int = 10
    """Levels of the grade that the trace gives to every candidate."""
    evidence: int = 1
    """Pieces of evidence that the trace cites of a candidate, strongest first, 8 at most; more of them need
    more of ``grid.trace_blocks``."""
    tries: int = 8
    """Rejection sampling: draws until the known target comes first; without success the list is dropped."""
    noise: float = 0.3
    """Scale of the Gumbel noise on expert scores after the first, noise-free try."""
    short_share: float = 0.1
    """Share of training lists cut to fewer candidates, so that short requests can be served."""


@dataclass
class AnswerConfig:
    ids: str = "label"
    """How an answer names a candidate: ``label``, one token for its place in the prompt."""


@dataclass
class TokenizerConfig:
    vocabulary: int = 1024
    """Size of the byte-level BPE trained when the model starts from scratch (added tokens come on top)."""


@dataclass
class ModelConfig:
    init: str = ""
    """Hugging Face folder to start from (its tokenizer is kept and extended); empty: from scratch."""
    hidden: int = 128
    """Hidden size of a model from scratch (Qwen3 architecture)."""
    layers: int = 4
    """Transformer layers."""
    heads: int = 4
    """Attention heads."""
    kv_heads: int = 2
    """Key/value heads."""
    mlp: int = 384
    """Width of the gated MLP."""
    mixed_precision: bool = False
    """Train the teacher and CFT with products in bfloat16; weights, losses and the loops stay in fp32."""
    context: int = 1024
    """Longest sequence in tokens, prompt and response together."""


@dataclass
class GridConfig:
    block_size: int = 16
    """Tokens a block, anchored at the end of the prompt; the answer starts on a block boundary."""
    trace_blocks: int = 3
    """Blocks of the reasoning trace; where it is not closed by then, policy decoding opens the answer."""


@dataclass
class OptimConfig:
    steps: int = 420
    """Optimizer steps."""
    batch_size: int = 32
    """Examples an optimizer step, over all workers."""
    micro_batch_size: int = 16
    """Examples a forward; a step accumulates over micro-batches with one global denominator."""
    micro_batch_tokens: int = 0
    """Tokens a forward at most, padding and noisy copies counted (one example may exceed it); 0 is no bound.
    For the teacher and CFT."""
    learning_rate: float = 2e-3
    """Peak learning rate (AdamW)."""
    warmup: float = 0.05
    """Share of the steps in linear warm-up; cosine decay to a tenth follows."""
    weight_decay: float = 0.01
    """Decoupled weight decay on matrices."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    checkpoint_every: int = 50
    """Steps between resumable checkpoints."""


@dataclass
class TeacherConfig:
    midtrain: OptimConfig = field(default_factory=lambda: OptimConfig(steps=50))
    """Next-token prediction on item cards and user histories, so that ids carry meaning."""
    sft: OptimConfig = field(default_factory=lambda: OptimConfig(steps=760))
    """Supervised fine-tuning on the traces."""
    reason_weight: float = 0.5
    """Weight of a reasoning token in the SFT loss; must be below answer_weight."""
    answer_weight: float = 1.0
    """Weight of an answer token in the SFT loss."""
    slip_share: float = 0.2
    """Share of candidates that answers show in a random slot: the others learn to go on from a mistake."""


@dataclass
class CftConfig:
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(steps=420))
    """Optimisation of the conversion."""
    alpha: float = 0.5
    """Weight of the diffusion loss beside the AR loss."""
    full_mask_share: float = 0.25
    """Share of extra fully masked blocks, the first state of every decode."""
    full_mask_share_answer: float = 0.35
    """The same share for answer blocks."""
    anchor_mask_share: float = 1.0
    """Share of fully masked blocks that show both anchor states: masked, as a fused commit-and-draft forward
    sees it, in one copy, and known in the other."""
    answer_weight: float = 3.0
    """Weight of answer blocks in the diffusion loss."""
    position_bias: float = 0.0
    """Masks later positions more often when few are masked; excludes the complementary copy."""
    exclusivity: float = 1.0
    """Set term: mass on identifiers already placed."""
    at_most_one: float = 0.5
    """Set term: an identifier's summed mass above one."""
    in_set: float = 0.2
    """Set term: mass outside the candidates."""
    listwise_weight: float = 0.15
    """Weight of the order behind the first place at the answer's anchor, which a readout decodes."""
    slip_share: float = 0.2
    """Share of candidates that answers show in a random slot: the others learn to go on from a mistake."""
    block_curriculum: list[int] = field(default_factory=lambda: [4, 8, 16])
    """Block sizes of the curriculum, in equal parts of the first half; the last one stays."""
    alignment: str = "in_place"
    """``in_place`` (a masked position predicts itself) or ``shift`` (its left neighbour predicts it)."""


@dataclass
class OpdConfig:
    optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(steps=40, batch_size=32, learning_rate=3e-4, checkpoint_every=10)
    )
    """Optimisation; ``batch_size`` is the rollouts of a step."""
    divergence: str = "forward_kl"
    """``forward_kl``, ``reverse_kl`` or ``jsd`` between teacher and student."""
    beta: float = 0.5
    """Weight of the teacher in the mixture of ``jsd``."""
    teacher_temperature: float = 0.3
    """Temperature of the teacher's distribution; below one the student learns to be surer."""
    top_k: int = 32
    """Teacher log-probabilities kept a token; the rest is one tail event."""
    copies: int = 2
    """Visited states replayed a rollout: one drawn step of every block in each."""
    first_state_share: float = 0.5
    """Share of replayed states that are a block's first, from which verified decoding drafts it whole."""
    answer_weight: float = 3.0
    """Weight of answer blocks in the divergence at visited states."""
    confidence_weight: float = 1.0
    """At visited states, weight of the cross-entropy of wrong guesses and, in the trace, of the entropy of
    right ones: sure where it is right, the student commits more tokens a forward."""
    ar_weight: float = 1.0
    """Weight of the divergence on the clean stream (AR mode and anchors)."""
    correct_answers: bool = True
    """Remove identifiers already placed, left or visible right, from the teacher in answer slots."""
    set_weight: float = 5.0
    """Weight of CFT's set terms at the visited states."""
    listwise_weight: float = 0.15
    """The same weight as in CFT, for the order that the student wrote slot by slot."""
    temperature: float = 0.0
    """Temperature of the rollouts; 0 is greedy, as deployed."""
    compare_off_policy: bool = True
    """Distil a second student, as many updates, on the teacher's own trajectories: a row for comparison."""


@dataclass
class RlConfig:
    optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(steps=16, batch_size=64, learning_rate=2e-5, checkpoint_every=10)
    )
    """Optimisation; ``batch_size`` is the rollouts of a step, whole groups."""
    group: int = 8
    """Rollouts of one prompt, compared with each other."""
    clip_low: float = 0.2
    """The ratio is clipped below one minus this."""
    clip_high: float = 0.28
    """The ratio is clipped above one plus this (clip-higher)."""
    rewards: list[str] = field(default_factory=lambda: ["rank", "format", "invalid"])
    """Rewards by name; see ``dgr2.objectives.rewards``."""
    reward_weights: list[float] = field(default_factory=lambda: [1.0, 0.5, -0.5])
    """Weight of each reward."""
    refills: int = 2
    """Times that groups without reward spread are replaced by fresh prompts."""
    updates: int = 1
    """Optimizer steps on one batch of rollouts; past the first the ratio moves away from one."""
    temperature: float = 0.7
    """Temperature of the rollouts, the same in the loss."""
    decode: str = "native"
    """Decode of the rollouts: ``native``, where identifiers can be repeated or lost, which costs reward, or
    ``policy``, as shipped."""


@dataclass
class DecodeConfig:
    commit: str = "threshold"
    """Rule of the commits: ``threshold``, ``left_to_right``, ``entropy``, ``factor`` or ``static``."""
    threshold: float = 0.6
    """Level of the rule in the trace. Tau, the probability that a committed token exceeds, of ``threshold``
    and ``left_to_right``; nats of ``entropy``; the factor of ``factor``; tokens a forward of ``static``."""
    answer_threshold: float = 0.99
    """Level in answer blocks, tau of the rules below; higher: near-tied slots had better wait."""
    answer_policy: str = "conflict"
    """Answer rule as shipped: ``threshold`` (none), ``prefix`` (confident prefix, none repeated) or
    ``conflict`` (every confident slot; of two with the same best identifier only the surer)."""
    readout: bool = False
    """The answer is the order of its anchor's probabilities, without another forward; in AR mode too."""
    verify: bool = True
    """Lossless: a block is drafted whole, whatever the levels, and the forward that commits it takes back
    what AR decoding would not have written."""
    batch_size: int = 64
    """Rows decoded together in evaluation."""
    fused: bool = True
    """Commit of a finished block and first draft of the next one in one forward."""


@dataclass
class EvaluationConfig:
    bootstrap: int = 2000
    """Bootstrap resamples behind every interval."""
    naive_instances: int = 128
    """Test instances decoded for the naive conversion, which runs to the length limit on most."""
    speed_instances: int = 24
    """Instances timed at batch 1, AR and block decoding in turns."""
    sweep: list[float] = field(default_factory=lambda: [0.5, 0.7, 0.8, 0.9, 0.95, 0.99])
    """Taus of the accuracy-against-speed plot, each in trace and answer alike."""
    sweep_instances: int = 192
    """Instances decoded for each threshold of the sweep."""
    examples: int = 3
    """Re-ranked examples shown with their reasoning."""


@dataclass
class RayConfig:
    address: str = ""
    """Cluster to join; empty starts a local one."""
    num_workers: int = 2
    """Data-parallel Ray Train workers."""
    threads_per_worker: int = 1
    """CPU threads and logical CPUs of a training worker."""
    use_gpu: bool = False
    """Train on a GPU a worker; actors and evaluation decode on CPUs."""
    timeout_s: float = 120.0
    """Longest wait for placement, actors and results; then an error says what was asked for and is free."""
    shard: bool = False
    """Shard weights, gradients and optimizer state over the workers (FSDP2); the result is the same."""
    recompute_layers: bool = False
    """Gradient checkpointing: training keeps each layer's input only and computes the layer twice; the result
    is the same."""
    max_failures: int = 1
    """Restarts of a failed worker group before the stage fails."""


@dataclass
class RolloutConfig:
    workers: int = 2
    """Actors that decode with the current student; the results do not depend on how many."""
    cpus_per_worker: float = 0.25
    """Logical CPUs an actor asks for: below one, since decoding and training take turns on the cores."""
    threads_per_worker: int = 1
    """CPU threads of an actor; another number may change the last bits of a log-probability."""
    teacher_workers: int = 1
    """Actors that score responses with the frozen teacher."""
    teacher_cpus: float = 0.25
    """Logical CPUs a teacher actor asks for."""
    train_cpus: float = 0.5
    """Logical CPUs of a training worker of the loops; it trains on ``ray.threads_per_worker`` threads."""
    queue_bound: int = 2
    """Blocks of samples that may wait for the trainer."""
    timeout_s: float = 180.0
    """Longest wait for an actor to start, for its weights and for one chunk; then it is replaced."""
    retries: int = 3
    """Times that a chunk is tried again, or an actor started again, after a lost actor or a time-out."""


@dataclass
class ServeConfig:
    replicas: int = 1
    """Copies of the model that share the requests."""
    threads: int = 1
    """CPU threads and logical CPUs of a replica."""
    max_batch_size: int = 16
    """Requests decoded together at most."""
    follow_load: bool = True
    """At its start a replica measures wide blocks, narrow blocks and AR decoding by batch size; a batch takes
    the fastest. False decodes every batch as shipped, so that an answer never depends on the load."""
    compile: bool = False
    """Compile the model's forwards when a replica starts: faster, as ``dgr2 bench decode`` shows, for a start
    that takes longer, above all the first time on a machine. Needs a C++ compiler."""
    remember_prompts: int = 64
    """Prompts whose keys and values a replica keeps: one that begins alike, as those of one user do, is
    computed from where it differs. Each takes the cache of its tokens in memory; 0 keeps none."""
    batch_wait_ms: float = 5.0
    """Longest wait for a batch to fill."""
    max_queued: int = 256
    """Requests that wait for a replica at most; further ones are answered with 429."""
    max_history: int = 1000
    """Items in the history of a request at most."""
    max_body_kb: int = 256
    """Size of a request at most."""
    timeout_s: float = 60.0
    """Longest time for a request, and for a decode before its replica counts as stuck."""


@dataclass
class TuneConfig:
    samples: int = 8
    """Trials of a sweep; the first one is the configuration as it stands."""
    max_concurrent: int = 0
    """Trials at a time; 0 takes as many as the cluster has room for."""
    reports: int = 10
    """Times that a trial reports its figures, in equal parts of its steps."""
    grace: int = 0
    """Steps before ASHA may stop a trial; 0 is a quarter of the stage's steps."""
    reduction: int = 3
    """At every rung ASHA keeps one trial in this many; the next rung is this many times as far."""
    metric: str = ""
    """Figure to search by; empty is valid_loss (cft), valid_tokens_per_forward (opd) or reward (rl)."""
    valid_lists: int = 64
    """Validation lists behind the validation loss of a cft trial."""
    budget_s: float = 0.0
    """Seconds after which a sweep ends with what it has; 0 is no limit."""
    space: list[str] = field(default_factory=list)
    """Lines KEY=DOMAIN; empty is the stage's own space. A domain is uniform(low,high), loguniform(low,high),
    randint(low,high), high left out, or choice(a,b,...)."""


@dataclass
class Config:
    preset: str = "demo"
    """Name of the preset this configuration started from."""
    seed: int = 0
    """Seed of everything random: shop, split of folds, initialisation, order, noise."""
    data: DataConfig = field(default_factory=DataConfig)
    """Interactions and lists."""
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    """First stage."""
    semantic_ids: SemanticIdConfig = field(default_factory=SemanticIdConfig)
    """Item identifiers."""
    expert: ExpertConfig = field(default_factory=ExpertConfig)
    """LambdaMART, the baseline row and the ranker behind the traces."""
    prompt: PromptConfig = field(default_factory=PromptConfig)
    """What the model sees."""
    traces: TraceConfig = field(default_factory=TraceConfig)
    """What the model learns to write."""
    answer: AnswerConfig = field(default_factory=AnswerConfig)
    """How it writes an answer."""
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """Vocabulary."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Backbone."""
    grid: GridConfig = field(default_factory=GridConfig)
    """Block grid shared by data, training and decoding."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    """AR teacher: mid-training and SFT."""
    cft: CftConfig = field(default_factory=CftConfig)
    """Conversion fine-tuning."""
    opd: OpdConfig = field(default_factory=OpdConfig)
    """On-policy distillation."""
    rl: RlConfig = field(default_factory=RlConfig)
    """Reinforcement learning."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    """Block decoding as shipped."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Metrics, intervals, speed."""
    serve: ServeConfig = field(default_factory=ServeConfig)
    """Deployment; never part of a fingerprint."""
    tune: TuneConfig = field(default_factory=TuneConfig)
    """Search with Ray Tune; never part of a fingerprint."""
    ray: RayConfig = field(default_factory=RayConfig)
    """Cluster resources; never part of a fingerprint."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Actors that decode and score; never part of a fingerprint."""


NOT_FINGERPRINTED = ("ray", "rollout", "serve", "tune")
"""Sections that change where and how fast something runs or what is searched, never the result of a run."""
