"""`TrainConfig`: everything that decides how a model is trained, complete before step 1."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vitlab.data.augment.config import AugmentConfig
from vitlab.errors import ConfigError

# Training without labels: how patches are hidden, and what the model predicts of them.


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedPatchConfig:
    """Masked patch prediction (arXiv:2010.11929, appendix B.1.2): mean colours of patches."""

    mask: float = 0.5
    """Share of the patches that are corrupted."""
    replaced: float = 0.8
    """Part of the corrupted patches whose embedding is the mask's."""
    swapped: float = 0.1
    """Part whose embedding is that of another patch; what is left stays as it is."""

    def __post_init__(self) -> None:
        _check_mask(self.mask)
        if min(self.replaced, self.swapped) < 0 or self.replaced + self.swapped > 1 + 1e-9:
            raise ConfigError(
                f"replaced {self.replaced} and swapped {self.swapped} are not parts of one whole"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class MaeConfig:
    """A masked autoencoder (arXiv:2111.06377): pixels of patches that were left out."""

    mask: float = 0.75
    """Share of the patches that the encoder does not see."""
    decoder_width: int = 96
    decoder_depth: int = 2
    """Blocks of the decoder, which is thrown away afterwards."""
    decoder_heads: int = 3

    def __post_init__(self) -> None:
        _check_mask(self.mask)
        for name in ("decoder_width", "decoder_depth", "decoder_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)} is not at least 1")
        if self.decoder_width % self.decoder_heads or self.decoder_width % 4:
            raise ConfigError(
                f"decoder_width {self.decoder_width} does not split into {self.decoder_heads} "
                f"heads, and into 4 parts for the positions"
            )


def _check_mask(share: float) -> None:
    if not 0 < share < 1:
        raise ConfigError(f"mask {share} is not a share between 0 and 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Optimizer and its hyperparameters."""

    name: Literal["adamw", "muon", "sgd"] = "adamw"
    """`muon` orthogonalises the updates of the encoder's matrices and leaves the rest to AdamW."""
    lr: float = 1e-3
    """Peak learning rate of AdamW or SGD."""
    muon_lr: float = 0.02
    """Peak learning rate of the matrices that Muon updates."""
    muon_for: Literal["encoder", "all"] = "encoder"
    """`all`: Muon updates convolutions too, those of the stem above all, but not depthwise ones."""
    muon_iterations: int = 5
    """Newton-Schulz iterations of Muon; three cost 40 % less and leave updates less orthogonal."""
    weight_decay: float = 0.05
    """Decoupled, times the learning rate; matrices only, no norms, biases, tokens or tables."""
    layer_decay: float = 1.0
    """Factor of the learning rate of AdamW or SGD from each layer to the one below it."""
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.95
    """Of SGD and Muon."""
    clip_norm: float = 1.0
    """Largest norm of the whole gradient; 0: not clipped."""
    sam: float = 0.0
    """Radius of sharpness-aware minimisation; 0: off."""

    def __post_init__(self) -> None:
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay {self.layer_decay} is not in (0, 1]")
        for name in ("lr", "muon_lr"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} {getattr(self, name)} is not positive")
        if self.muon_iterations < 1:
            raise ConfigError(f"muon_iterations {self.muon_iterations} is not at least 1")
        for name in ("weight_decay", "clip_norm", "sam"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} {getattr(self, name)} is negative")
        for value in (*self.betas, self.momentum):
            if not 0 <= value < 1:
                raise ConfigError(f"betas and momentum must be in [0, 1), found {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """Learning rate over the run, as a factor of its peak."""

    kind: Literal["cosine", "linear", "constant", "rsqrt"] = "cosine"
    """`constant` holds the peak until the cool-down; `rsqrt` falls with 1 / sqrt(step)."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate grows linearly from 0."""
    cooldown: float = 0.2
    """Share of the steps, at the end, in which `constant` and `rsqrt` fall linearly to 0."""

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.cooldown < 0 or self.warmup + self.cooldown > 1:
            raise ConfigError(
                f"warmup {self.warmup} and cooldown {self.cooldown} are not shares of one run"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """All settings of a run: model, data, optimisation, evaluation and checkpoints."""

    model: str = "vit_cifar"
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the model's config that differ from its name's."""
    seed: int = 0
    learns: Literal["everything", "head", "lora"] = "everything"
    """All parameters, the last layer alone, or updates of low rank and the last layer."""
    lora_rank: int = 8
    frozen_blocks: int = 0
    """First encoder blocks that never learn, and the stem with them."""
    head_first: float = 0.0
    """Share of the steps, at the start, in which the head learns alone."""
    whiten: int = 0
    """Training images from whose patches the first layer starts as a whitening; 0: at random."""
    whiten_frozen: bool = False
    """The whitened layer's weight never learns, its random filters neither."""
    batch_size: int = 128
    budget: float = 10.0
    budget_in: Literal["epochs", "steps", "minutes"] = "epochs"
    """Minutes are turned into steps by measuring the speed first, before step 1."""
    images_per_class: int = 0
    """Images of each class that the run may use, drawn by the seed; 0: all."""
    hold_out: float = 0.1
    """Share of the training images kept aside for choosing; 0: nothing is chosen."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    small_sizes: tuple[int, ...] = ()
    """Shorter sides of the images in the first stages of the run, which cost less."""
    small_until: tuple[float, ...] = ()
    """Share of the run at which each of these stages ends."""
    label_smoothing: float = 0.1
    balance: Literal["none", "loss", "sampling"] = "none"
    """Let rare classes count as much as frequent ones: in the loss, or by drawing them oftener."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    ema: float = 0.0
    """Decay of the averaged weights per step; 0: no average is kept."""
    accumulate: int = 1
    """Parts that a batch is computed in."""
    shards: int = 0
    """Parts whose gradients are added in a fixed order; 0: none.

    Weights are then bit-identical for every number of processes that divides it.
    """
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several processes: each holds the whole model, or a shard of every tensor of it."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """`auto`: bfloat16 where the machine has products of it, settled before step 1."""
    recompute_activations: bool = False
    """Gradient checkpointing: a block's activations are computed twice instead of being kept."""
    compile: bool = False
    """Train through `torch.compile`; evaluation and saved weights are those of the plain model."""
    evaluations: int = 10
    """Number of evaluations of the held-out images during the run."""
    patience: int = 0
    """Stop after so many evaluations worse than the best by more than chance; 0: never.

    Counted from where the learning rate has fallen to half, or cools down.
    """
    checkpoint_every: int = 200
    """Steps between two checkpoints."""
    keep: int = 2
    """Checkpoints kept beside the best."""
    tensorboard: bool = False
    """Short for `tensorboard` among the loggers."""
    loggers: tuple[str, ...] = ()
    """Names of loggers that get the metrics too: tensorboard, wandb, mlflow, or registered ones."""
    workers: int = 0
    """Processes that decode images from files; 0: the training process itself.

    `auto`, in the changes of a run: by the number of cores.
    """
    shard_window: int = 16
    """Shards whose images are shuffled together, for data in shards or tables."""
    max_broken: float = 0.2
    """Share of unreadable images from which on the run stops."""
    judge_all: bool = True
    """A class without test or held-out images stops the run before it begins."""
    judged_on: Literal["test", "held-out"] = "test"
    """Images of the final evaluation.

    `held-out`: the run is one of many to choose from, and never opens the test images.
    """
    masked_patch: MaskedPatchConfig | None = None
    """Learn without labels, from corrupted patches; None: not so."""
    mae: MaeConfig | None = None
    """Learn without labels, as a masked autoencoder; None: not so."""
    REMOVED: ClassVar[dict[str, Any]] = {"ghost_batches": 1}
    """Options of earlier versions, with their defaults."""

    @property
    def all_loggers(self) -> tuple[str, ...]:
        """Names of the loggers, each once."""
        short = ("tensorboard",) if self.tensorboard else ()
        return tuple(dict.fromkeys((*short, *self.loggers)))

    @property
    def objective(self) -> Literal["masked-patch", "mae"] | None:
        """Objective of training without labels; None: labels are used."""
        if self.mae is not None:
            return "mae"
        return None if self.masked_patch is None else "masked-patch"

    def __post_init__(self) -> None:
        _check_pretraining(self)
        for name in (
            "batch_size",
            "accumulate",
            "evaluations",
            "checkpoint_every",
            "keep",
            "lora_rank",
            "shard_window",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)} is not at least 1")
        for name in (
            *("patience", "workers", "seed", "frozen_blocks", "images_per_class"),
            *("whiten", "shards"),
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} {getattr(self, name)} is negative")
        if not 0 <= self.max_broken <= 1:
            raise ConfigError(f"max_broken {self.max_broken} is not in [0, 1]")
        for name in ("hold_out", "label_smoothing", "ema", "head_first"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)} is not in [0, 1)")
        if min(self.small_sizes, default=1) < 1:
            raise ConfigError(f"small_sizes {self.small_sizes} has an entry below 1")
        stages = (0.0, *self.small_until, 1.0)
        if len(self.small_until) != len(self.small_sizes) or sorted(set(stages)) != list(stages):
            raise ConfigError(
                f"small_until {self.small_until} is not one growing share of the run, between 0 "
                f"and 1, for each of small_sizes {self.small_sizes}"
            )
        if not self.budget > 0:
            raise ConfigError(f"budget {self.budget} {self.budget_in} is not positive")
        if self.batch_size % self.accumulate:
            raise ConfigError(
                f"batch_size {self.batch_size} does not split into {self.accumulate} parts"
            )
        _check_shards(self)
        if self.whiten_frozen and not self.whiten:
            raise ConfigError("whiten_frozen needs whiten > 0: nothing else may start there")
        if self.patience and not self.hold_out:
            raise ConfigError("patience needs hold_out > 0: nothing else may decide when to stop")
        if self.judged_on == "held-out" and not self.hold_out:
            raise ConfigError("judged_on held-out needs hold_out > 0: no images are held out")


def _check_shards(config: TrainConfig) -> None:
    """Raise if shards and another way to divide a batch or a model are set."""
    if not config.shards:
        return
    if config.batch_size % config.shards:
        raise ConfigError(
            f"batch_size {config.batch_size} does not split into {config.shards} shards"
        )
    if config.accumulate > 1:
        raise ConfigError(
            f"shards {config.shards} and accumulate {config.accumulate}: a shard is computed as "
            f"one part; valid: accumulate 1"
        )
    if config.parallel == "fsdp":
        raise ConfigError(f"shards {config.shards} and parallel fsdp; valid: parallel ddp")


def _check_pretraining(config: TrainConfig) -> None:
    """Raise if a setting about labels, heads or pretrained weights is used without labels."""
    if config.objective is None:
        return
    if config.mae is not None and config.masked_patch is not None:
        raise ConfigError("masked_patch and mae: a run has one objective")
    plain = TrainConfig()
    for name in ("learns", "frozen_blocks", "head_first", "balance", "whiten"):
        if getattr(config, name) != getattr(plain, name):
            raise ConfigError(
                f"{name} {getattr(config, name)} is not for {config.objective}; "
                f"valid: {getattr(plain, name)}"
            )
    if config.optimizer.layer_decay != 1:
        raise ConfigError(
            f"optimizer.layer_decay {config.optimizer.layer_decay} is not for "
            f"{config.objective}; valid: 1"
        )
