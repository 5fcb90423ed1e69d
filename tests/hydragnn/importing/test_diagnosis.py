"""Every failure of the public HydraGNN: files that suffered it, files that did not, and files that cannot tell."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from hydragnn.frozen import FrozenGraph, FrozenSettings, build
from hydragnn.frozen.keys import joined
from hydragnn.importing.diagnosis import RULES, Case, Set, diagnose
from tests.hydragnn.frozen.folders import batches, config_of, folders, weights_of

YES, NO, UNKNOWN = "suffered", "not suffered", "cannot be told"
FOLDERS = {folder.name: folder for folder in folders()}
HEAD = {"num_headlayers": 1, "dim_headlayers": [4], "type": "mlp"}


def two(**head: Any) -> list[dict[str, Any]]:
    """Networks of two branches."""
    return [{"type": f"branch-{number}", "architecture": {**HEAD, **head}} for number in (0, 1)]


def case_of(config: dict[str, Any], **more: Any) -> Case:
    """A configuration alone, in three sections."""
    keys = ("NeuralNetwork", "Architecture", "Training", "Variables_of_interest")
    network = {name: config.pop(name, {}) for name in keys[1:]}
    network["Architecture"] = {"mpnn_type": "GIN", **network["Architecture"]}
    network["Training"] = {"Optimizer": {"type": "AdamW"}, "batch_size": 4, **network["Training"]}
    options: dict[str, Any] = {"names": ["graph_convs.0.weight"], "file": "run.pk", **more}
    return Case(config={**config, "NeuralNetwork": network}, **options)


def ring(**changes: Any) -> FrozenGraph:
    """Two graphs of three nodes, each node with both neighbours."""
    ends = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    places = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    graph = FrozenGraph(
        x=torch.ones(6, 1),
        pos=torch.cat([places, places]),
        edge_index=torch.cat([ends, ends + 3], dim=1),
        batch=torch.tensor([0, 0, 0, 1, 1, 1]),
        num_graphs=2,
    )
    return replace(graph, **changes)


def data(kind: Any = "bp", parts: Any = None, graph: FrozenGraph | None = None, **more: Any) -> dict[str, Any]:
    """A set of graphs of four training, two validation and two test graphs."""
    parts = {"trainset": "abcd", "valset": "efgh", "testset": "ijkl"} if parts is None else parts
    return {"data": Set(format=kind, parts=parts, graph=ring() if graph is None else graph, **more)}


def architecture(**keys: Any) -> dict[str, Any]:
    return {"Architecture": keys}


def training(**keys: Any) -> dict[str, Any]:
    return {"Training": keys}


def chosen(inputs: list[int], index: int, level: str) -> dict[str, Any]:
    variables = {"input_node_features": inputs, "output_index": [index], "type": [level]}
    return {"Variables_of_interest": variables}


LONG = ring(pos=ring().pos * 9)
ONE_WAY = ring(edge_index=ring().edge_index[:, 1:])
COINCIDENT = ring(pos=torch.zeros(6, 3))
SELF = ring(edge_index=torch.tensor([[0, 1], [0, 1]]))
OLD = FrozenSettings(kind="EGNN", generation="v3.0", hidden_dim=1, num_conv_layers=1, input_dim=1, heads=())

ROWS: list[tuple[int, dict[str, Any], dict[str, Any], str]] = [
    (1, architecture(global_attn_engine="GPS"), {}, YES),
    (1, architecture(), {}, NO),
    (2, architecture(use_graph_attr_conditioning=True), {}, YES),
    (2, architecture(), {}, NO),
    (3, {}, {"names": ["module.graph_convs.0.weight"]}, YES),
    (3, {}, {}, NO),
    (4, {}, {}, UNKNOWN),
    (5, {}, {"file": "run_branch0.pk"}, UNKNOWN),
    (5, {}, {}, NO),
    (6, architecture(mpnn_type="SchNet", periodic_boundary_conditions=True), {}, YES),
    (6, architecture(mpnn_type="SchNet"), {}, NO),
    (6, architecture(mpnn_type="SchNet", edge_features=["lengths"]), {}, UNKNOWN),
    (6, architecture(mpnn_type="SchNet", edge_features=["lengths"]), data(), NO),
    (7, architecture(output_heads={"node": two()}), {}, YES),
    (7, architecture(output_heads={"graph": two(), "node": two()}), {}, NO),
    (8, architecture(output_heads={"node": two(type="conv")}), {}, YES),
    (8, architecture(output_heads={"node": {**HEAD, "type": "conv"}}), {}, NO),
    (9, architecture(enable_interatomic_potential=True) | training(precision="fp64"), {}, YES),
    (9, architecture(enable_interatomic_potential=True), {}, NO),
    (9, training(precision="fp64"), {}, NO),
    (10, architecture(activation_function="gelu"), {}, YES),
    (10, training(loss_function_type="smooth_l1"), {}, YES),
    (10, architecture(activation_function="prelu"), {}, NO),
    (11, training(Optimizer=None), {}, YES),
    (11, {}, {}, NO),
    (12, {"Dataset": {"Descriptors": {"SphericalCoordinates": True}}}, {}, YES),
    (12, {"Dataset": {"format": "CFG"}} | architecture(periodic_boundary_conditions=True), data("raw"), YES),
    (12, {"Dataset": {"format": "CFG"}} | architecture(periodic_boundary_conditions=True), {}, UNKNOWN),
    (12, {"Dataset": {"format": "CFG"}}, data("raw"), NO),
    (13, architecture(mpnn_type="MACE", correlation=[3, 2]), {}, YES),
    (13, architecture(mpnn_type="MACE") | training(loss_function_type="GaussianNLLLoss"), {}, YES),
    (13, architecture(mpnn_type="MACE", correlation=3), {}, NO),
    (14, architecture(mpnn_type="PAINN"), data(graph=COINCIDENT), YES),
    (14, architecture(mpnn_type="PAINN"), data(), NO),
    (14, architecture(mpnn_type="PAINN"), {}, UNKNOWN),
    (15, chosen([2], 0, "graph"), data("pickle"), UNKNOWN),
    (15, chosen([2], 0, "graph"), data(), NO),
    (15, chosen([0, 1], 0, "graph"), {}, NO),
    (16, architecture(radius=5.0), data(graph=LONG), YES),
    (16, architecture(radius=1.2), data(), NO),
    (16, architecture(radius=5.0), data(), NO),
    (16, architecture(radius=5.0), {}, UNKNOWN),
    (17, architecture(mpnn_type="EGNN"), data(graph=ONE_WAY), YES),
    (17, architecture(mpnn_type="EGNN"), data(), NO),
    (17, architecture(mpnn_type="EGNN"), {}, UNKNOWN),
    (17, architecture(mpnn_type="MACE"), data(graph=ONE_WAY), NO),
    (18, {}, data(parts={"trainset": "abcd", "testset": "dx"}), YES),
    (18, {}, data(fitted_on_all=True), YES),
    (18, {}, data(fitted_on_all=False), NO),
    (18, {}, {}, UNKNOWN),
    (19, architecture(output_heads={"graph": two()}), {}, UNKNOWN),
    (19, architecture(output_heads={"graph": two()[:1]}), {}, NO),
    (20, training(Checkpoint=True), {}, UNKNOWN),
    (20, {}, {}, NO),
    (21, {}, data(), NO),
    (21, {}, data(parts={"trainset": "abcde"}), UNKNOWN),
    (22, architecture(initial_bias=1.0), {}, YES),
    (22, architecture(SyncBatchNorm=True), {}, YES),
    (22, architecture(mpnn_type="GAT"), {}, YES),
    (22, {}, {}, NO),
    (23, {}, data(parts={"trainset": "", "testset": "a"}), YES),
    (23, {}, data(), NO),
    (23, {}, {}, UNKNOWN),
    (25, architecture(mpnn_type="EGNN"), {"settings": OLD}, UNKNOWN),
    (27, architecture(mpnn_type="GAT", use_graph_attr_conditioning=True), {}, YES),
    (27, architecture(use_graph_attr_conditioning=True), {}, NO),
    (29, architecture(mpnn_type="EGNN", equivariance=True), {"settings": OLD, **data(graph=SELF)}, YES),
    (29, architecture(mpnn_type="EGNN", equivariance=True), {"settings": OLD, **data()}, NO),
    (29, architecture(mpnn_type="EGNN", equivariance=True), {"settings": OLD}, UNKNOWN),
    (29, architecture(mpnn_type="EGNN"), {"settings": OLD, **data(graph=SELF)}, NO),
]


@pytest.mark.parametrize(("number", "config", "more", "verdict"), ROWS)
def test_files_tell_what_they_suffered(number: int, config: dict[str, Any], more: dict[str, Any], verdict: str) -> None:
    (finding,) = [one for one in diagnose(case_of(dict(config), **more)) if one.number == number]
    assert (finding.verdict, bool(finding.evidence)) == (verdict, True), finding


def test_every_failure_has_a_rule() -> None:
    assert sorted(RULES) == list(range(1, 30))


def of_folder(name: str, change: Callable[[FrozenGraph], FrozenGraph] = lambda graph: graph) -> dict[int, Any]:
    if name not in FOLDERS:
        pytest.skip("the folders of the public HydraGNN do not lie beside the project")
    folder = FOLDERS[name]
    parts, config = weights_of(folder), config_of(folder)
    weights = joined(parts)
    settings = FrozenSettings.from_config(config, weights)
    graph = change(next(batches(folder))[0].to(torch.float32))
    file = sorted(path.name for path in folder.rglob("*.pk"))[0]
    case = Case(
        config=config,
        names=list(parts[0]),
        file=file,
        settings=settings,
        module=build(settings, weights),
        data=Set(format="bp", parts={}, graph=graph),
    )
    return {one.number: one for one in diagnose(case)}


SIZES: list[tuple[int, str, str, float, float]] = [
    # number, folder, verdict, smallest and largest size that its makers measured
    (1, "GIN_d251_gps", YES, 2.4, 2.6),
    (1, "EGNN_v5_gps", YES, 0.35, 0.37),
    (1, "PNA_gps_multihead_len", YES, 0, 0),
    (2, "SAGE_v5_cond_film", YES, 0, 0),
    (4, "CGCNN_v2_nolen", NO, 0, 0),
    (5, "EGNN_sc25_taskparallel3", NO, 0, 0),
    (6, "SchNet_v5_mlip", YES, 1e-3, 10),
    (6, "SchNet_multihead", NO, 0, 0),
    (17, "EGNN_mlip_graphhead", YES, 1e-3, 1),
    (17, "EGNN_nolen_atoms3", NO, 0, 0),
    (24, "PAINN_v4_multihead", YES, 1e-3, 0.02),
    (24, "PAINN_d251_control", NO, 0, 0),
    (25, "EGNN_v4_crystals", YES, 0.07, 0.09),
    (25, "EGNN_v4_convhead", YES, 0.5, 0.6),
    (25, "DimeNet_v3_molecules", NO, 0, 0),
    (26, "EGNN_gfm2024_m62", YES, 0.2, 0.3),
    (26, "EGNN_v4_crystals", NO, 0, 0),
    (28, "GIN_v2_convhead", YES, 0, 0),
    (28, "EGNN_v4_convhead", NO, 0, 0),
]


@pytest.mark.parametrize(("number", "folder", "verdict", "low", "high"), SIZES)
def test_sizes_are_those_that_were_measured(number: int, folder: str, verdict: str, low: float, high: float) -> None:
    finding = of_folder(folder)[number]
    assert finding.verdict == verdict, finding
    if high:
        size = next(float(word) for word in finding.size.split() if word[0].isdigit())
        assert low <= size <= high, finding.size
