"""Settings of a model of the public HydraGNN, and its version."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args

import pydantic
from torch import Tensor, nn

from hydragnn.base.errors import InputError
from hydragnn.base.settings import first_problem

Kind = Literal[
    "GIN", "SAGE", "MFC", "GAT", "PNA", "PNAPlus", "CGCNN", "SchNet", "DimeNet", "EGNN", "PAINN", "PNAEq", "MACE"
]
OWN_KINDS: dict[str, str] = {**{kind: kind.lower() for kind in get_args(Kind)}, "GAT": "gatv2"}
"""Architecture of this program for each of theirs."""
Generation = Literal["v2.0", "v3.0", "2024", "v4.0", "v4.0+", "v5.0", "main", "variables"]
"""Version, or ``v4.0+`` for v4.0 or later."""
OLD = ("v2.0", "v3.0", "2024")
FAILURE = "suffered silent failure"
"""Beginning of a sentence, before the number in docs/silent-failures.md."""
FLAT = ("GIN", "SAGE", "MFC")
"""Kinds whose layers see no edges' features; those of all others do."""
FIRST = (*FLAT, "GAT", "PNA", "CGCNN")
"""Kinds that do not depend on positions."""
OLD_KINDS = {"v2.0": FIRST} | dict.fromkeys(("v3.0", "2024"), (*FIRST, "SchNet", "DimeNet", "EGNN"))
"""Kinds of old versions whose arithmetic is known."""
UNREAD = ("graph_pooling", "global_attn_engine", "use_graph_attr_conditioning", "enable_interatomic_potential")
"""Keys that old versions did not know, whatever a configuration says."""

ARITHMETIC: dict[str, dict[str, tuple[str, ...]]] = {
    "squared_distances": {"EGNN": OLD},
    "reversed_steps": {"EGNN": OLD, "SchNet": OLD},
    "single_constants": {"SchNet": (*OLD, "v4.0", "v4.0+", "v5.0", "variables")},
    "zero_shifts": {"EGNN": (*OLD, "v4.0"), "DimeNet": OLD},
    "last_conv_layer_only": {"*": ("v2.0",)},
    "rebuilt_graph": {"SchNet": (*OLD, "v4.0", "v4.0+", "v5.0", "main", "variables")},
}
"""Generations in which the code of a kind, or of all, computed otherwise than today's."""


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "selu": nn.SELU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "lrelu_01": lambda: nn.LeakyReLU(0.1),
    "lrelu_025": lambda: nn.LeakyReLU(0.25),
    "lrelu_05": lambda: nn.LeakyReLU(0.5),
    "sigmoid": nn.Sigmoid,
}
POOLS = {"mean": "mean", "add": "sum", "sum": "sum", "max": "amax"}
"""Reductions over the nodes of a graph."""

LEAST = {"num_gaussians": 2, "num_spherical": 2, "radius": 1e-3, "avg_num_neighbors": 1e-6}
LEAST |= dict.fromkeys(("envelope_exponent", "num_before_skip", "num_after_skip"), 0)
"""Least values of settings, where these are not 1."""
MANY = 4096
"""Numbers of modules or functions that are made before they are found to lack weights."""


Layers = Annotated[int, pydantic.AfterValidator(lambda count: max(count, 1))]
"""Number of layers; the first one was made without a look at it."""


class Head(pydantic.BaseModel, frozen=True):
    """Output of the model."""

    level: Literal["graph", "node"]
    dim: int = pydantic.Field(ge=1)


class Networks(pydantic.BaseModel, frozen=True):
    """Networks of all graph heads, or node heads, in one branch."""

    type: Literal["mlp", "mlp_per_node", "conv"] = "mlp"
    num_sharedlayers: Layers = 1
    dim_sharedlayers: int = pydantic.Field(1, ge=1)
    num_headlayers: Layers
    dim_headlayers: tuple[int, ...] = pydantic.Field(min_length=1)


class FrozenSettings(pydantic.BaseModel, frozen=True, extra="ignore"):
    """Keys of ``Architecture`` that decide the function, and the writer's arithmetic."""

    kind: Kind
    generation: Generation
    evidence: tuple[str, ...] = ()  # sentences: why this generation

    hidden_dim: int
    num_conv_layers: Layers
    input_dim: int
    edge_dim: int = 0
    heads: tuple[Head, ...]
    graph_heads: dict[str, Networks] = {}  # by the name of the branch
    node_heads: dict[str, Networks] = {}
    activation_function: str = "relu"
    graph_pooling: str = "mean"
    num_nodes: int | None = None
    variance: bool = False  # every head gives one beside its mean
    interatomic: bool = False
    conditioning: Literal["film", "concat_node", "fuse_pool"] | None = None
    graph_attributes: int = 0

    radius: float | None = None
    max_neighbours: int | None = None
    equivariance: bool = False
    pna_deg: tuple[int, ...] | None = None
    num_gaussians: int | None = None
    num_filters: int | None = None
    num_radial: int | None = None
    num_spherical: int | None = None
    envelope_exponent: int | None = None
    num_before_skip: int | None = None
    num_after_skip: int | None = None
    basis_emb_size: int | None = None
    int_emb_size: int | None = None
    out_emb_size: int | None = None
    radial_type: str | None = None
    distance_transform: str | None = None
    correlation: int | tuple[int, ...] | None = None
    max_ell: int | None = None
    node_max_ell: int | None = None
    avg_num_neighbors: float | None = None

    global_attn_engine: str | None = None
    global_attn_type: str | None = None
    global_attn_heads: int = 0
    pe_dim: int = 0
    equivariant_attn_lmax: int = 1
    equivariant_attn_num_radial: int = 16
    equivariant_attn_feedforward_multiplier: int = 2
    equivariant_attn_coupling_mode: str = "parallel"

    vector_biases: bool = False  # linear maps of vectors have biases (PAINN, PNAEq until August 2026)
    squared_distances: bool = False
    reversed_steps: bool = False  # nodes move along vectors from receiver to sender
    single_constants: bool = False  # constants are of single precision in double precision, too
    zero_shifts: bool = False  # of periodic edges
    last_conv_layer_only: bool = False  # hidden layers of convolutional node heads do nothing
    rebuilt_graph: bool = False  # layers find their own edges, without periodic images

    @pydantic.model_validator(mode="before")
    @classmethod
    def _with_arithmetic(cls, table: dict[str, Any]) -> dict[str, Any]:
        kind, generation = str(table.get("kind")), str(table.get("generation"))
        return {flag: generation in old.get(kind, old.get("*", ())) for flag, old in ARITHMETIC.items()} | table

    @property
    def draws_anew(self) -> bool:
        """Return True for a network of graph attributes with new weights in every pass."""
        return self.kind == "GAT" and self.conditioning == "concat_node" and not self.global_attn_engine

    def required(self, name: str) -> Any:
        """Return a setting that this kind needs."""
        value, least = getattr(self, name), LEAST.get(name, 1)
        if value is None:
            raise InputError(f"config.json: {name} is missing, which {self.kind} needs")
        if isinstance(value, int | float) and value < least:
            raise InputError(f"config.json: {name} = {value}, where {self.kind} needs {least} at least")
        return value

    @classmethod
    def from_config(cls, config: Any, weights: Mapping[str, Tensor]) -> "FrozenSettings":
        """Return those of a ``config.json`` and its checkpoint."""
        settings = cls.unchecked(config, weights)
        settings.check(weights)
        return settings

    @classmethod
    def unchecked(cls, config: Any, weights: Mapping[str, Tensor]) -> "FrozenSettings":
        """Return settings that may have no function."""
        try:
            return cls.model_validate(table_of(config, weights))
        except pydantic.ValidationError as error:
            raise InputError(f"config.json, Architecture: {first_problem(error)}") from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"config.json is no configuration of the public HydraGNN: {type(error).__name__} {error!s:.80}"
            ) from None

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Refuse what has no function, and sizes without weights."""
        sizes = [size for tensor in weights.values() for size in tensor.shape]
        most = max([MANY, len(weights), *sizes])
        names = r"num_(?!nodes)|hidden_dim|input_dim|edge_dim" + "|max_neighbours" * (self.kind == "MFC")
        names += "|num_nodes" * any(head.type == "mlp_per_node" for head in self.node_heads.values())
        counts = [(name, one) for name, one in self if re.match(names, name)]
        counts += [("num_sharedlayers", head.num_sharedlayers) for head in self.graph_heads.values()]
        for name, count in counts:
            if count is not None and not 0 <= count <= most:
                raise InputError(f"config.json: {name} = {count}, which is no size in the checkpoint")
        for name, valid in (("activation_function", [*ACTIVATIONS]), ("graph_pooling", [*POOLS])):
            if (choice := getattr(self, name)) not in valid:
                failed = f" ({FAILURE} 10)" if name == "activation_function" else ""
                raise InputError(
                    f'config.json: {name} = "{choice:.40}" has no function{failed}; one of {", ".join(valid)}'
                )
        if self.kind not in OLD_KINDS.get(self.generation, (self.kind,)):
            raise InputError(f"config.json: the arithmetic of {self.kind} in {self.generation} is not known")
        if self.pna_deg is not None and (min(self.pna_deg, default=-1) < 0 or not sum(self.pna_deg)):
            raise InputError("config.json: pna_deg are no numbers of nodes by their degree")
        if self.draws_anew:
            raise InputError(
                f"GAT with graph_attr_conditioning_mode = concat_node has no function ({FAILURE} 27): its code draws new weights in "
                "every forward, since its layers differ in width; train it anew, with film"
            )
        if self.conditioning and not self.graph_attributes:
            raise InputError(
                f"the checkpoint has no weights of graph_attr_conditioning_mode = {self.conditioning}: it was saved before "
                "a first forward created them"
            )


def table_of(config: Any, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the settings of a configuration, derived ones too."""
    network = config["NeuralNetwork"]
    architecture, training = network["Architecture"], network.get("Training") or {}
    table = {key: value for key, value in architecture.items() if value not in (None, "")}
    generation, evidence = generation_of(config, weights)
    if generation in OLD:
        table = {key: value for key, value in table.items() if key not in UNREAD}
    if not {"input_dim", "output_type", "output_dim"} <= table.keys():
        levels, dims, inputs = variables_of(config)
        table = {"input_dim": inputs, "output_type": levels, "output_dim": dims} | table
    table.setdefault("edge_dim", len(table.get("edge_features", [])))
    kind = table.get("mpnn_type") or table["model_type"]
    if kind == "SchNet" and generation in OLD:
        table["edge_dim"] = 0  # not handed on there, and these two in each other's place
        table |= {"num_gaussians": table.get("num_filters"), "num_filters": table.get("num_gaussians")}
    if kind == "CGCNN" and not table.get("global_attn_engine"):
        table["hidden_dim"] = table["input_dim"]
    heads, attributes = zip(table["output_type"], table["output_dim"], strict=True), 0
    for name, tensor in weights.items():
        if (more := CONDITIONERS.get(name.removeprefix("module.").removeprefix("model."))) is not None:
            attributes = tensor.shape[1] - more * tensor.shape[0]
    mode = table.get("graph_attr_conditioning_mode", "concat_node").lower()
    conditioning = mode if table.get("use_graph_attr_conditioning") else None
    if conditioning == "fuse_pool" and not attributes and (kind == "MACE" or "graph" not in table["output_type"]):
        conditioning = None  # nothing was pooled
    table["graph_pooling"] = table.get("graph_pooling", "mean").lower()
    if kind == "GAT":
        table["num_conv_layers"] = max(table["num_conv_layers"], 2)  # a first and a last one
    if any(name.endswith("avg_deg_lin") for name in weights):
        table.setdefault("pna_deg", (0, 1))  # means of degrees are in the checkpoint
    if generation == "v2.0":
        table["activation_function"] = "relu"  # not read there
    return table | {
        "kind": kind,
        "generation": generation,
        "evidence": evidence,
        "heads": [{"level": level, "dim": dim} for level, dim in heads],
        "graph_heads": branches(table["output_heads"].get("graph"), weights),
        "node_heads": branches(table["output_heads"].get("node"), weights),
        "variance": training.get("loss_function_type") == "GaussianNLLLoss",
        "interatomic": bool(
            training.get("compute_grad_energy") if generation == "v4.0" else table.get("enable_interatomic_potential")
        ),
        "conditioning": conditioning,
        "graph_attributes": attributes,
        "vector_biases": any(name.endswith(("update_U.bias", "update_X.bias")) for name in weights),
    }


def variables_of(config: Mapping[str, Any]) -> tuple[list[Any], list[int], int]:
    """Return level and width of every output, and inputs of a node."""
    if "Variables" in config:
        outputs, inputs = config["Variables"]["outputs"], config["Variables"]["inputs"]
        nodes = [one["dim"] for one in inputs if one["level"] == "node" and one.get("role") != "position"]
        return [one["level"] for one in outputs], [one["dim"] for one in outputs], sum(nodes)
    variables = config["NeuralNetwork"]["Variables_of_interest"]
    levels, widths = variables["type"], {level: features_of(config, level)[1] for level in ("node", "graph")}
    dims = variables.get("output_dim") or [
        (*widths[level][index : index + 1], 1)[0] for level, index in zip(levels, variables["output_index"])
    ]
    return levels, dims, len(variables["input_node_features"])


def features_of(config: Mapping[str, Any], level: str) -> tuple[list[str], list[int]]:
    """Return names and widths of the features of nodes or graphs."""
    own = (config.get("Dataset") or {}).get(f"{level}_features") or {}
    listed = config["NeuralNetwork"]["Variables_of_interest"]
    dims = own.get("dim") or listed.get(f"{level}_feature_dims") or []
    names = own.get("name") or listed.get(f"{level}_feature_names") or []
    return [*names], [*dims]


def branches(heads: Any, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return networks by branch of the checkpoint; old ones have one."""
    if not heads:
        return {}
    if isinstance(heads, Mapping):
        return {"branch-0": heads}
    names = {match[0] for name in weights if (match := re.search(r"\bbranch-\d+", name))}
    return {branch["type"]: branch["architecture"] for branch in heads if branch["type"] in names}


CONDITIONERS = {"graph_conditioner.0.weight": 0, "graph_concat_projector.weight": 1, "graph_pool_projector.0.weight": 1}
"""Weights of conditioning networks, and whether these see states beside the attributes of a graph."""


def generation_of(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> tuple[Generation, list[str]]:
    """Return which version wrote a configuration and a checkpoint, with the evidence."""
    network = config["NeuralNetwork"]
    architecture, training = network["Architecture"], network.get("Training") or {}
    if "Variables" in config:
        return "variables", ["config.json has Variables at its top level"]
    if any(name.removeprefix("module.").startswith("convs.") for name in weights):
        return "v2.0", ["keys of the checkpoint begin with convs."]
    if "model_type" in architecture and "mpnn_type" not in architecture:
        if "conv_checkpointing" in training:
            return "2024", ["config.json has model_type, and conv_checkpointing under Training"]
        return "v3.0", ["config.json has model_type, and keys of the checkpoint begin with graph_convs."]
    if "global_attn_redraw_interval" in training or any(key.startswith("equivariant_attn_") for key in architecture):
        return "main", ["config.json has global_attn_redraw_interval or keys that begin with equivariant_attn_"]
    young = [key for key in ("enable_interatomic_potential", "use_graph_attr_conditioning") if key in architecture]
    young += ["precision"] * ("precision" in training)
    if young or any(name.removeprefix("module.").startswith("model.") for name in weights):
        return "v5.0", [
            f"config.json has mpnn_type, and {young[0]}" if young else "keys of the checkpoint begin with model."
        ]
    if "compute_grad_energy" in training:
        return "v4.0", ["config.json has mpnn_type, and compute_grad_energy under Training"]
    return "v4.0+", ["config.json has mpnn_type, and no key that v4.0 or v5.0 add when they save it"]
