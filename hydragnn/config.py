"""One run, completely described: everything that its result depends on."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from hydragnn.architectures import ModelSettings
from hydragnn.base.errors import InputError, nearest
from hydragnn.base.files import digest, read_json
from hydragnn.base.places import at_home, paths_of
from hydragnn.base.settings import ActsWith, Settings, is_given, refuse_idle
from hydragnn.callbacks import AnyCallback, check_callbacks
from hydragnn.datasets.isolated_atoms import isolated_atoms
from hydragnn.datasets.settings import BatchSettings, DataSettings, SplitSettings
from hydragnn.models.heads import AnyHead
from hydragnn.parallel import ParallelSettings
from hydragnn.start import StartSettings, with_start


class TrainSettings(Settings):
    """Optimiser, schedule and length of one training run."""

    acts_with: ClassVar = {
        "plateau_patience": ActsWith(
            words='with schedule = "plateau"', remedy="set it", holds=lambda train: train.schedule == "plateau"
        )
    }

    removed: ClassVar = {"compile": ..., "tensorboard": ...}

    seldom: ClassVar = frozenset({"callbacks", "base_batch"})

    epochs: int = Field(default=100, ge=1)
    """Full budget in epochs; schedules span it, whatever the segments."""

    optimizer: Literal["adamw", "sgd", "lamb", "lars"] = "adamw"
    """AdamW; SGD with Nesterov momentum 0.9; or, for large batches, LAMB and LARS (extra ``optimizers``), whose every weight tensor has a rate by its norm."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate. Absent, AdamW trains energies with forces at 3e-3, unless there is a [start]; a resumed run keeps its own."""

    base_batch: int = Field(default=0, ge=0, le=2**53, exclude_if=lambda graphs: not graphs)
    """Graphs per step that ``learning_rate`` is meant for. It is multiplied by the ratio of the run's batch to these (SGD, LARS), or its square root (AdamW, LAMB); 0: never."""

    weight_decay: float = Field(default=1e-5, ge=0)
    """Decoupled weight decay (AdamW) or L2 (SGD)."""

    schedule: Literal["cosine", "plateau", "constant"] = "cosine"
    """cosine: to zero at the last step; plateau: halved after ``plateau_patience`` epochs without a better validation loss."""

    plateau_patience: int = Field(default=10, ge=1)
    """Epochs without improvement before the plateau schedule halves the rate."""

    warmup_epochs: float = Field(default=0.0, ge=0)
    """Linear warm-up from zero, in epochs: by the graphs that were shown, whatever the batch."""

    stage_two: float = Field(default=0.75, gt=0, le=1)
    """Share of the epochs after which energies weigh more, ``stage_two_factor`` of their heads times; 1: never."""

    clip_norm: float = Field(default=10.0, ge=0)
    """Largest norm of the gradient; 0 does not clip."""

    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    """Exponential moving average of weights used for validation and kept as the model; 0 is off."""

    precision: Literal["fp64", "fp32", "tf32", "bf16"] = "fp32"
    """Arithmetic of the step; bf16 keeps weights in fp32 (autocast)."""

    graphs: Literal["auto", "on", "off"] = "auto"
    """on: steps on a GPU are recorded once for every size of batches as graphs of CUDA or HIP, and replayed: batches are padded by at most 8 %, and the
    host no longer limits small steps. What cannot be recorded runs as it is, and the record says why. auto: on a GPU, where
    the run is long enough."""

    patience: int = Field(default=0, ge=0)
    """Stop after this many epochs without a better validation loss, those before a second stage not counted; 0 never stops early."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of initial weights, order of data and dropout."""

    checkpoint_epochs: int = Field(default=1, ge=1)
    """Epochs between checkpoints."""

    checkpoint_seconds: float = Field(default=2.0, ge=0)
    """Least time between checkpoints, so that runs of short epochs do not spend theirs on files; results do not depend on it."""

    callbacks: list[AnyCallback] = Field(default_factory=list, exclude_if=lambda callbacks: not callbacks)
    """Loggers (csv, tensorboard, mlflow, wandb) and callbacks of your own (docs/own-code.md); training does not depend on them."""

    @model_validator(mode="after")
    def _check(self) -> "TrainSettings":
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs = {self.warmup_epochs:g} leaves nothing of epochs = {self.epochs}")
        if self.optimizer == "lars" and not is_given(self, "learning_rate"):
            raise ValueError(
                'optimizer = "lars" has no default rate, since it multiplies by 0.001; set learning_rate, such as 1'
            )
        return self


def check_heads(heads: list[Any]) -> list[Any]:
    """ValueError where a field is predicted twice, or nothing has a weight."""
    outputs = [name for head in heads for name in head.outputs]
    twice = sorted({name for name in outputs if outputs.count(name) > 1})
    if twice:
        raise ValueError(f"{twice[0]} is predicted twice; keep one head per field")
    if not any(weight > 0 for head in heads for weight in head.weights.values()):
        raise ValueError("every loss weight is 0; give at least one field a positive weight")
    return heads


Heads = Annotated[list[AnyHead], Field(min_length=1), AfterValidator(check_heads)]


class BranchSettings(Settings):
    """One data set of a run and its heads."""

    name: str = Field(default="", pattern="^[A-Za-z0-9_-]*$")
    """Stands behind the names of its targets, ``energy@metals``; letters, digits, ``_`` and ``-``."""
    weight: float = Field(default=1.0, gt=0)
    """Times that an epoch shows each of its training graphs: 1 once, 2 twice, 0.5 every second epoch."""

    data: DataSettings
    split: SplitSettings = SplitSettings()
    heads: Heads

    @property
    def targets(self) -> list[str]:
        """The fields that its heads predict, by their names in its store."""
        return [name for head in self.heads for name in head.outputs]


def _set_default_rate(config: "AnyConfig") -> None:
    """Set the default learning rate of energies with forces, without a start."""
    train, heads = config.train, [head for branch in config.branches for head in branch.heads]
    is_set = is_given(train, "learning_rate") or train.optimizer != "adamw" or getattr(config, "start", None)
    if not is_set and any("forces" in head.derivatives for head in heads):
        own = TrainSettings.model_construct(train.model_fields_set, **{**dict(train), "learning_rate": 3e-3})
        object.__setattr__(config, "train", own)  # frozen, and the user's own section stays as it is


class _Config(Settings):
    """Base of configurations of runs."""

    acts_with: ClassVar = {
        "train.stage_two": ActsWith(
            words="on energy heads with forces or stress, and a stage_two_factor other than 1",
            remedy='give such a head, with kind = "energy"',
            holds=lambda config: any(
                head.derivatives and getattr(head, "stage_two_factor", 1.0) != 1.0
                for branch in config.branches
                for head in branch.heads
            ),
        )
    }

    @property
    def hash(self) -> str:
        """Short hash of the whole configuration."""
        return digest(self.to_json())


class RunConfig(_Config):
    """The sections of CONFIG.toml, for one data set; ``BranchedConfig`` is for several."""

    data: DataSettings
    split: SplitSettings = SplitSettings()
    batch: BatchSettings = BatchSettings()
    model: ModelSettings
    heads: Heads
    train: TrainSettings = TrainSettings()
    start: StartSettings | None = None
    """The trained model that the run begins with; absent: weights are drawn."""
    parallel: ParallelSettings | None = None
    """Layout of the ranks; absent: all hold all weights and share batches."""

    seldom: ClassVar = frozenset({"start", "parallel"})

    @model_validator(mode="before")
    @classmethod
    def _refuse_branches(cls, value: Any) -> Any:
        if isinstance(value, dict) and "branches" in value:
            raise ValueError(
                "it has several branches, and this works on one data set; name a branch, or take another run"
            )
        return value

    @model_validator(mode="after")
    def _check(self) -> "RunConfig":
        _set_default_rate(self)
        return self

    @property
    def targets(self) -> list[str]:
        """All predicted fields, in the order of the heads."""
        return [name for head in self.heads for name in head.outputs]

    @property
    def branches(self) -> list[BranchSettings]:
        """Return the one data set with its heads as a nameless branch."""
        return [BranchSettings.model_construct(data=self.data, split=self.split, heads=self.heads)]  # checked already

    def of_branch(self, name: str) -> "RunConfig":
        """Return this configuration for no name; InputError for a name."""
        if name:
            raise InputError(f"it has no branch {name}: it was trained on one data set; leave the branch out")
        return self


class BranchedConfig(_Config):
    """Sections of CONFIG.toml for several data sets on one trunk."""

    branches: list[BranchSettings] = Field(min_length=2)
    batch: BatchSettings = BatchSettings()
    model: ModelSettings
    train: TrainSettings = TrainSettings()
    parallel: ParallelSettings | None = None
    """Layout of the ranks; absent: all hold all weights and share batches."""

    seldom: ClassVar = frozenset({"parallel"})

    @model_validator(mode="before")
    @classmethod
    def _refuse_sections_of_one_branch(cls, value: Any) -> Any:
        if isinstance(value, dict) and "start" in value:
            raise ValueError(
                "start is for runs on one data set, and this one has branches; leave start or branches out"
            )
        for section in ("data", "split", "heads"):
            if isinstance(value, dict) and section in value:
                raise ValueError(
                    f"{section} belongs to a branch where there are branches; move it to branches.{section}"
                )
        return value

    @model_validator(mode="after")
    def _check(self) -> "BranchedConfig":
        names = [branch.name for branch in self.branches]
        if "" in names:
            raise ValueError(f"branches.{names.index('')} has no name; add one, for example that of its data set")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"branches: two are named {twice[0]}; give each a name of its own")
        _set_default_rate(self)
        return self

    @property
    def targets(self) -> list[str]:
        """All targets, in the order of branches and heads: ``energy@metals``."""
        return [f"{name}@{branch.name}" for branch in self.branches for name in branch.targets]

    def of_branch(self, name: str) -> RunConfig:
        """Return the run of one branch; InputError lists the branches."""
        names = [branch.name for branch in self.branches]
        if name not in names:
            problem = (
                f"it has no branch {name}; {nearest(name, names)}" if name else "it has several branches; name one"
            )
            way = "" if name else " by --branch, branch= or hydragnn.load(RUN, branch)"
            raise InputError(f"{problem} (branches: {', '.join(names)}){way}")
        branch = self.branches[names.index(name)]
        own: dict[str, Any] = {"data": branch.data, "split": branch.split, "heads": branch.heads}
        return RunConfig(batch=self.batch, model=self.model, train=self.train, parallel=self.parallel, **own)


AnyConfig = RunConfig | BranchedConfig
"""A run on one data set or on several."""


def parse_config(table: Any, source: str = "configuration") -> AnyConfig:
    """Return the run that a table describes; InputError on anything wrong."""
    kind = BranchedConfig if isinstance(table, dict) and "branches" in table else RunConfig
    return kind.parse(table, source)


def stored_config(path: Path | str) -> AnyConfig:
    """Return the run of a ``config.json``; InputError if missing or damaged."""
    path = Path(path)
    return parse_config(read_json(path), str(path))


def with_begun_rate(config: AnyConfig, path: Path) -> AnyConfig:
    """Return a configuration that states no learning rate with that of ``path``."""
    if is_given(config, "train.learning_rate") or not path.is_file():
        return config
    rate = stored_config(path).train.learning_rate
    return config.model_copy(update={"train": config.train.model_copy(update={"learning_rate": rate})})


def config_from_table(table: dict[str, Any], path: Path, *, stored: bool = False) -> AnyConfig:
    """Return the run of a table; paths count from ``path``'s folder.

    InputError on anything wrong, and for a setting that a user gave and that cannot act.
    """
    config = parse_config(with_start(with_isolated_atoms(table, path), path), source=str(path))
    if not stored:
        refuse_idle(config, str(path))
        check_callbacks(config.train.callbacks)

    def placed(data: DataSettings) -> DataSettings:
        places = tuple((path.parent / at_home(store)).resolve() for store in paths_of(data.store))
        return data.model_copy(update={"store": places if len(places) > 1 else places[0]})

    if isinstance(config, RunConfig):
        return config.model_copy(update={"data": placed(config.data)})
    branches = [branch.model_copy(update={"data": placed(branch.data)}) for branch in config.branches]
    return config.model_copy(update={"branches": branches})


def with_isolated_atoms(table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a table with energies in place of files of isolated atoms."""
    result: dict[str, Any] = copy.deepcopy(dict(table))
    branches = result.get("branches")
    for section in (result, *(branches if isinstance(branches, list) else ())):
        heads = section.get("heads") if isinstance(section, dict) else None
        for head in heads if isinstance(heads, list) else ():
            if isinstance(head, dict) and isinstance(head.get("references"), str):
                file = (path.parent / at_home(head["references"])).resolve()
                head["references"] = isolated_atoms(file, str(head.get("field", "energy")))
    return result
