"""One run, completely described: everything that its result depends on."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from hydragnn.architectures import ModelSettings
from hydragnn.datasets.settings import BatchSettings, DataSettings, SplitSettings
from hydragnn.files import digest
from hydragnn.models.head_settings import HeadSettings
from hydragnn.settings import Settings, read_toml, with_overrides


class TrainSettings(Settings):
    """Optimiser, schedule and length of one training run."""

    epochs: int = Field(default=100, ge=1)
    """Full budget in epochs; schedules span it, whatever the segments."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or SGD with Nesterov momentum 0.9."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""

    weight_decay: float = Field(default=1e-5, ge=0)
    """Decoupled weight decay (AdamW) or L2 (SGD)."""

    schedule: Literal["cosine", "plateau", "constant"] = "cosine"
    """cosine: to zero at the last step; plateau: halved after ``plateau_patience`` epochs without a better validation loss."""

    plateau_patience: int = Field(default=10, ge=1)
    """Epochs without improvement before the plateau schedule halves the rate."""

    warmup_epochs: float = Field(default=0.0, ge=0)
    """Linear warm-up from zero, in epochs."""

    clip_norm: float = Field(default=10.0, ge=0)
    """Largest norm of the gradient; 0 does not clip."""

    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    """Exponential moving average of weights used for validation and kept as the model; 0 is off."""

    precision: Literal["fp64", "fp32", "bf16"] = "fp32"
    """Arithmetic of the step; bf16 keeps weights in fp32 (autocast)."""

    patience: int = Field(default=0, ge=0)
    """Stop after this many epochs without a better validation loss; 0 never stops early."""

    seed: int = Field(default=0, ge=0)
    """Seed of initial weights, order of data and dropout."""

    checkpoint_epochs: int = Field(default=1, ge=1)
    """Epochs between checkpoints."""

    checkpoint_seconds: float = Field(default=2.0, ge=0)
    """Least time between checkpoints, so that runs of short epochs do not spend theirs on files; results do not depend on it."""

    tensorboard: bool = False
    """Also write TensorBoard curves into the run's folder."""

    @model_validator(mode="after")
    def _check(self) -> "TrainSettings":
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs = {self.warmup_epochs:g} leaves nothing of epochs = {self.epochs}")
        return self


class RunConfig(Settings):
    """The sections of CONFIG.toml."""

    data: DataSettings
    split: SplitSettings = SplitSettings()
    batch: BatchSettings = BatchSettings()
    model: ModelSettings
    heads: list[HeadSettings] = Field(min_length=1)
    train: TrainSettings = TrainSettings()

    @model_validator(mode="after")
    def _check(self) -> "RunConfig":
        outputs = [name for head in self.heads for name in head.outputs]
        twice = sorted({name for name in outputs if outputs.count(name) > 1})
        if twice:
            raise ValueError(f"heads: {twice[0]} is predicted twice; keep one head per field")
        if not any(weight > 0 for head in self.heads for weight in head.weights.values()):
            raise ValueError("heads: every loss weight is 0; give at least one field a positive weight")
        return self

    @property
    def hash(self) -> str:
        """Short hash of the whole configuration."""
        return digest(self.to_json())

    @property
    def targets(self) -> list[str]:
        """All predicted fields, in the order of the heads."""
        return [name for head in self.heads for name in head.outputs]


def read_config(path: Path, assignments: list[str] | None = None) -> RunConfig:
    """The run that a TOML file and ``--set key=value`` assignments describe; InputError on anything wrong."""
    return config_from_table(with_overrides(read_toml(path), assignments or []), path)


def config_from_table(table: dict[str, Any], path: Path) -> RunConfig:
    """The run that a parsed table describes; a relative store path counts from the folder of ``path``."""
    config = RunConfig.parse(table, source=str(path))
    store = (path.parent / config.data.store).resolve()
    return config.model_copy(update={"data": config.data.model_copy(update={"store": store})})
