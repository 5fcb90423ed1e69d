"""Loaded models as modules of torch, for any kind of graphs; roll-outs that feed every member its own predictions."""

import copy
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from torch.utils.data import DataLoader

import hydragnn
from hydragnn.base import imports
from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, open_store
from hydragnn.ensemble import Ensemble, build_ensemble, calculator, rollout, spread_factors
from hydragnn.ensemble.ensemble import ensemble_of
from hydragnn.ensemble.prediction.rules import rule_for
from hydragnn.graphs import Field, GraphBatch, concatenate, graph_from_arrays
from hydragnn.graphs.pyg import torch_geometric
from hydragnn.models import load_model
from hydragnn.record import OUTSIDE
from hydragnn.runs import train
from tests.ensemble.conftest import calculating, config_of, refused, written
from tests.once import shared

PYG = torch_geometric("data")
SOURCES: dict[str, Callable[[MemoryStore, list[Atoms]], Any]] = {
    "a batch": lambda store, frames: store[:6],
    "graphs": lambda store, frames: list(store)[:6],
    "a store": lambda store, frames: MemoryStore(store[:6], store.attributes),
    "structures": lambda store, frames: frames[:6],
    "a batch of torch_geometric": lambda store, frames: PYG.Batch.from_data_list(of_pyg(store)),
    "data of torch_geometric": lambda store, frames: of_pyg(store),
    "data without edges": lambda store, frames: [data(one.numbers, torch.tensor(one.positions)) for one in frames[:6]],
    "a dataset": lambda store, frames: MemoryStore(store[:6]).to_pyg(),
}


def of_pyg(store: MemoryStore) -> list[Any]:
    return [store.to_pyg()[number] for number in range(6)]


def data(numbers: Any, positions: torch.Tensor, **more: Any) -> Any:
    return PYG.Data(z=torch.as_tensor(numbers), pos=positions, **more)


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("several", [False, True], ids=["run", "ensemble"])
def test_all_kinds_of_graphs_give_the_same_answers(
    kind: str, several: bool, runs: list[Path], ensemble: Path, store: MemoryStore, frames: list[Atoms]
) -> None:
    model = hydragnn.load(ensemble if several else runs[0])
    source = SOURCES[kind](store, frames)
    expected, predicted, values = model.predict(store[:6]), model.predict(source), model.trainable()(source)
    for name in ("energy", "forces"):
        np.testing.assert_allclose(predicted[name].mean, expected[name].mean, rtol=1e-5, atol=1e-5)
        assert values[name].dtype == torch.float32 and values[name].requires_grad
        np.testing.assert_allclose(values[name].detach().numpy(), expected[name].mean, rtol=1e-4, atol=1e-4)


def test_in_double_precision_the_module_is_the_prediction(runs: list[Path], store: MemoryStore) -> None:
    for run in (runs[0], runs[2]):
        model = Ensemble.load(run, dtype=torch.float64)
        values, predicted = model.trainable()(store[:9]), model.predict(store[:9])
        alone = load_model(run / "model", dtype=torch.float64).predict(store[:9])
        for name in ("energy", "forces"):
            assert values[name].dtype == torch.float64
            np.testing.assert_allclose(values[name].detach().numpy(), predicted[name].mean, rtol=1e-12, atol=1e-12)
            assert torch.equal(alone[name].tensors()["mean"], values[name].detach())


def test_a_loop_of_ones_own_trains_a_copy(runs: list[Path], store: MemoryStore) -> None:
    loaded = hydragnn.load(runs[0])
    before, model = loaded.predict(store[:8])["energy"].mean, loaded.trainable()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    model.train()
    for _ in range(3):
        for batch in DataLoader(store.dataset(), batch_size=20):
            optimizer.zero_grad()
            values = model(batch)
            loss = sum((values[name] - batch[name]).square().mean() for name in ("energy", "forces"))
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    after = model.eval()(store[:8])["energy"].detach()
    assert float((after - torch.from_numpy(before)).abs().max()) > 1e-3
    np.testing.assert_array_equal(loaded.predict(store[:8])["energy"].mean, before)
    again = hydragnn.load(runs[0]).trainable().eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(store[:8])["energy"].detach(), after)


def test_the_gradient_of_a_weight_is_a_difference_quotient(runs: list[Path], store: MemoryStore) -> None:
    model = hydragnn.load(runs[2]).trainable().double()
    name, weight = max(model.named_parameters(), key=lambda pair: pair[1].numel())
    model(store[:4])["forces"].square().sum().backward()
    place = int(weight.grad.abs().argmax()) if weight.grad is not None else 0
    values = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            weight.view(-1)[place] += step
        values.append(float(model(store[:4])["forces"].square().sum().detach()))
    assert weight.grad is not None, name
    assert (values[0] - values[1]) / 2e-5 == pytest.approx(float(weight.grad.view(-1)[place]), rel=1e-6)


def test_embeddings_are_the_states_that_heads_read(ensemble: Path, runs: list[Path], store: MemoryStore) -> None:
    of_run = hydragnn.load(runs[0]).embeddings(store[:3])
    assert of_run.shape == (store[:3].num_nodes, 12)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(hydragnn.load(runs[0]).embeddings(store[:3]), of_run)
    torch.testing.assert_close(of_run, load_model(runs[0] / "model").states(store[:3]))
    assert hydragnn.load(ensemble).embeddings(store[:3]).shape[1] == 36


def test_a_model_has_several_paths(runs: list[Path], ensemble: Path, store: MemoryStore, tmp_path: Path) -> None:
    expected = hydragnn.load(runs[0]).predict(store[:2])["energy"].mean
    for path in (str(runs[0]), runs[0] / "model", str(runs[0] / "model")):
        np.testing.assert_array_equal(hydragnn.load(path).predict(store[:2])["energy"].mean, expected)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")
    refused("is a model without its run", hydragnn.load, tmp_path / "model")
    assert repr(hydragnn.load(ensemble)) == "Ensemble(energy, forces; of 0000, 0001, 0002)"
    assert "eV/Angstrom" in hydragnn.load(ensemble)._repr_html_()


def test_predict_takes_what_is_in_memory_and_what_is_in_files(
    ensemble: Path, stored: Path, structures_file: Callable[[int], Path], frames: list[Atoms], tmp_path: Path
) -> None:
    store, model = open_store(stored), hydragnn.load(ensemble)
    every = hydragnn.predict(ensemble, stored)
    for source in (str(stored), store, frames):
        np.testing.assert_allclose(hydragnn.predict(model, source)["energy"].mean, every["energy"].mean, rtol=1e-6)
    file = hydragnn.predict(str(ensemble), structures_file(6))
    assert len(file) == 6 and "structure 1" in file.status[1] and np.isnan(file["energy"].mean[1])
    np.testing.assert_allclose(file["energy"].mean[2:], every["energy"].mean[2:6], rtol=1e-6)
    written = hydragnn.predict(ensemble, store, tmp_path / "out.h5")
    assert written is not None and written.graphs == len(store)
    assert "first 10 graphs" in every._repr_html_() and repr(every).startswith("Predictions(energy, forces of 80 of 80")


@pytest.mark.parametrize(
    "wrong, words",
    [
        (3, "3 is no list, data set or generator of graphs"),
        ([], "no structure to predict"),
        ("in.xyz", "in.xyz does not exist"),
        (__file__, r"is no store; predict files with hydragnn.predict"),
        ([np.zeros(3)], "not numpy's ndarray"),
        (PYG.HeteroData(), "was not built of graphs like torch_geometric's HeteroData"),
    ],
)
def test_what_is_no_graph_gets_a_sentence(wrong: Any, words: str, runs: list[Path]) -> None:
    refused(words, Ensemble.load(runs[0]).predict, wrong)


def test_edges_of_another_rule_are_refused_where_only_large_graphs_tell(runs: list[Path], store: MemoryStore) -> None:
    one, model = store.to_pyg()[3], hydragnn.load(runs[0])
    one.edge_index, one.edge_shifts = one.edge_index[:, :4], one.edge_shifts[:4]
    for use in (model.trainable(), model.predict):
        refused(r"has 4 edges, and those of training \(cutoff = 4.5\) would be", use, [one])
    refused("have 2 coordinates, and those of atoms 3", model.graphs, data([29], torch.zeros(1, 2)))
    chain = torch.arange(4)[:, None] * torch.tensor([2.5, 0.0, 0.0])
    ends = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])  # within 3, and training had 4.5
    small, large = (data([29] * size, chain[:size], edge_index=ends[:, : 2 * size - 2]) for size in (2, 4))
    assert model.trainable()([small])["energy"].isfinite().all()
    model.predict([small])
    large.pos = chain * 0.8  # second neighbours are 4 apart
    for use in (model.graphs, model.predict):
        refused(r"graph 1 of torch_geometric's Data has 6 edges, and those .* would be 10", use, [small, large])


def test_forces_are_never_zeros_of_inference_mode(runs: list[Path], store: MemoryStore) -> None:
    model, batch = hydragnn.load(runs[0]).trainable(), store[:2]
    with torch.inference_mode(), pytest.raises(InputError, match=r"which torch.inference_mode forbids"):
        model(batch)
    with torch.no_grad():
        assert model(batch)["forces"].abs().max() > 0


def test_models_and_stores_are_copied_and_pickled(runs: list[Path], stored: Path) -> None:
    store, model = open_store(stored), hydragnn.load(runs[0])
    expected = model.predict(store[:3])["forces"].mean
    again, copied = pickle.loads(pickle.dumps((store, model))), copy.deepcopy(model)
    np.testing.assert_array_equal(again[1].predict(again[0][:3])["forces"].mean, expected)
    np.testing.assert_array_equal(copied.predict(store[:3])["forces"].mean, expected)


def energy_of(model: Any, atoms: Atoms) -> float:
    return float(calculating(atoms, model, outside="record").get_potential_energy())


def test_members_predict_a_store_as_their_runs_and_make_an_ensemble(
    ensemble: Path, runs: list[Path], store: MemoryStore, frames: list[Atoms], tmp_path: Path
) -> None:
    own, other = (hydragnn.predict(one, store)["forces"]["mean"] for one in (ensemble / "members" / "1", runs[1]))
    np.testing.assert_allclose(own, other, atol=1e-6)
    members = [ensemble / "members" / number for number in "02"]
    build_ensemble(members, tmp_path / "again", store=store)
    energies = [energy_of(member, frames[0]) for member in members]
    assert min(energies) - 1e-6 <= energy_of(tmp_path / "again", frames[0]) <= max(energies) + 1e-6


def test_a_member_without_its_weights_is_damaged(received: Path) -> None:
    (received / "members" / "0" / "weights.safetensors").unlink()
    refused(r"weights\.safetensors", calculator, received / "members" / "0")
    shutil.copyfile(received / "members" / "1" / "weights.safetensors", received / "members" / "0" / "model.json")
    refused(r"model\.json", calculator, received / "members" / "0")


FIELDS = [
    *(Field(name=name, on="node", unit="K") for name in ("warmth", "source")),
    *(Field(name=name, on="node", unit=unit, role="target") for name, unit in (("next", "K"), ("flow", "W"))),
]


def ring(number: int) -> GraphBatch:
    """A ring whose nodes take part of the warmth of their neighbours."""
    random, size = torch.Generator().manual_seed(number), 5 + number % 3
    here, following = torch.arange(size), (torch.arange(size) + 1) % size
    warmth, source = torch.randn(2, size, generator=random)
    flow = warmth[following] + warmth[here - 1] - 2 * warmth
    nodes = {"warmth": warmth, "source": source, "next": warmth + 0.2 * flow + 0.1 * source, "flow": flow}
    angle = 2 * torch.pi * here / size
    positions = torch.stack([angle.cos(), angle.sin()], dim=1)
    ends = torch.cat([here, following]), torch.cat([following, here])
    return graph_from_arrays(positions, *ends, fields=FIELDS, nodes=nodes)


FLOW = {"kind": "scalar", "field": "flow"}


@shared
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on rings and their ensemble."""
    folder = tmp_path_factory.mktemp("rollouts")
    store = written(folder / "rings.h5", concatenate([ring(number) for number in range(40)]))
    for seed in range(2):
        table = {
            "data": {"store": str(store)},
            "model": {"kind": "schnet", "hidden_dim": 8, "num_layers": 1},
            "heads": [{"kind": "scalar", "field": "next", "correction_of": "warmth"}, FLOW],
            "train": {"epochs": 2, "seed": seed},
        }
        hydragnn.train(table, folder / f"run-{seed}")
    hydragnn.build_ensemble([folder / "run-0", folder / "run-1"], folder / "both")
    return folder


def test_every_member_goes_on_from_its_own_predictions(place: Path) -> None:
    model, graph = hydragnn.load(place / "both"), ring(100)
    course = rollout(model, graph, 3)
    assert course.constant == ("source",) and course.steps == 3
    for number in range(2):
        member, batch = load_model(place / f"run-{number}/model"), graph
        for step in range(3):
            warmth = member.predict(batch)["next"].mean
            torch.testing.assert_close(course.courses["warmth"][number, step], warmth)
            batch = batch.with_fields({"warmth": warmth.float()})
    first, second = course.courses["warmth"]
    weights = course.weights["warmth"]
    mean, away = weights[0] * first + weights[1] * second, weights.square().sum()
    torch.testing.assert_close(course.mean("warmth"), mean)
    variance = weights[0] * (first - mean) ** 2 + weights[1] * (second - mean) ** 2
    torch.testing.assert_close(course.spread("warmth"), (variance * (1 + away) / (1 - away)).sqrt())


@pytest.mark.parametrize(
    ("scale", "words"), [(1.0, ""), (10.0, "statistics: the largest distance of its nodes to their nearest neighbours")]
)
def test_a_roll_out_that_begins_outside_the_training_domain_says_so(
    place: Path, scale: float, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = ring(100)
    course = rollout(hydragnn.load(place / "both"), replace(graph, positions=graph.positions * scale), 1)
    note = "note: 1 of 1 graphs are outside the training domain where the roll-out begins: "
    assert words in course.domain[0] and bool(words) == bool(course.domain[0])
    assert (note + course.domain[0] in capsys.readouterr().err) == bool(words)


def test_factors_of_held_out_roll_outs_make_the_spread_as_large_as_errors(place: Path) -> None:
    model, graphs = hydragnn.load(place / "both"), [ring(number) for number in (100, 101)]
    courses = [rollout(model, graph, 3) for graph in graphs]
    means = [course.mean("warmth") for course in courses]
    truths = [{"warmth": mean + 0.1 * torch.randn(mean.shape)} for mean in means]
    factors = spread_factors(courses, truths)
    scaled = [course.scaled(factors) for course in courses]
    torch.testing.assert_close(spread_factors(scaled, truths)["warmth"], torch.ones(3, dtype=torch.float64))
    refused("2 factors of warmth; give one per step of warmth: 3", courses[0].scaled, {"warmth": factors["warmth"][:2]})


def test_what_has_no_roll_out_is_refused(place: Path) -> None:
    model, graph = Ensemble.load(place / "run-0"), ring(100)
    for feedback, words in (
        ({"warmth": "flow"}, "flow is a node field of shape .* in W, and warmth a node field of shape .* in K"),
        ({"warmh": "next"}, "the model has no warmh there; did you mean warmth"),
        ({"warmth": "nex"}, "the model has no nex there; did you mean next"),
        ({}, "no prediction becomes an input; say which in feedback"),
    ):
        refused(words, rollout, model, graph, 2, feedback=feedback)
    refused("0 steps; roll out at least 1", rollout, model, graph, 0)
    refused("one model has no spread", rollout(model, graph, 1).spread, "warmth")
    lost = graph.with_fields({"source": torch.full_like(graph["source"], torch.nan)})
    refused(r"member .*: warmth is no longer finite after 1 steps; take fewer steps", rollout, model, lost, 2)


PLAIN: dict[str, Any] = {"cutoff": 4.5, "source": "ase", "build": {"kind": "ase"}}
CHANGED = {**PLAIN, "build": {"kind": "ase", "transform": "numpy:copy"}}
OTHERS: dict[str, Any] = {"has cutoff = 5.0, the": ({}, {"cutoff": 5.0}), "changed by numpy:copy": ({}, CHANGED)}
OTHERS |= {"means .* by energy": ({"unit": "Hartree"}, PLAIN), "has no field energy": ({"name": "enthalpy"}, PLAIN)}


class Doubled(torch.nn.Module):
    """A layer around a module, which torch's wrappers resemble."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


def test_a_saved_module_predicts_as_it_did(runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    few, member = store[:24], hydragnn.load(runs[0]).members[0]
    data = member.config.data.model_copy(update={"store": written(tmp_path / "training.h5", store[:], **PLAIN)})
    facts: dict[str, Any] = {"labels": {"energy": {"train": 1}}, "continued": ["train.epochs"], "start": {"kept": []}}
    record, config = replace(member.record, **facts), member.config.model_copy(update={"data": data})
    model, out = ensemble_of([replace(member, config=config, record=record)]), tmp_path / "tuned"
    module = model.trainable()
    for number, (words, (changes, attributes)) in enumerate(OTHERS.items()):
        energy = replace(few.fields["energy"], **changes)
        graphs = few.with_fields(drop=["energy"]).with_fields({energy.name: few["energy"]}, fields=[energy])
        refused(words, hydragnn.save, module, out, data=written(tmp_path / f"{number}.h5", graphs, **attributes))
    module.models[0].node_inputs.register_parameter("gate", torch.nn.Parameter(torch.ones(1)))
    refused("do not both have node_inputs.gate of one shape; undo pruning", hydragnn.save, module, out)
    module = model.trainable()
    module.models[0].node_inputs.register_forward_hook(lambda layer, inputs, states: states * 9)
    refused("predicts otherwise than a new one with its weights", hydragnn.save, module, out)
    module = model.trainable()
    module.register_forward_hook(lambda layer, inputs, values: {name: value * 2 for name, value in values.items()})
    refused("predicts otherwise than a new one with its weights", hydragnn.save, module, out)
    module = model.trainable()
    module.models[0].forward = lambda batch: batch.lost  # type: ignore[method-assign]
    refused("the module failed: AttributeError: .* repair it", hydragnn.save, module, out)
    refused("holds no numbers, or some that are not finite", hydragnn.save, model.trainable().to("meta"), out)
    for kind in (torch.complex64, torch.float64):
        *_, last = (module := model.trainable()).parameters()
        last.data = (last.data.double() + 1e-12).to(kind)
        refused("or not kept by torch.float32; save it .* in one precision", hydragnn.save, module, out)
    refused("save takes what", hydragnn.save, Doubled(model.trainable()), out)
    module = model.trainable()
    module.models[0] = Doubled(module.models[0])
    refused("save takes what", hydragnn.save, module, out)
    with torch.inference_mode():
        module = model.trainable()
        hydragnn.save(torch.nn.DataParallel(model.trainable().bfloat16()), tmp_path / "coarse")
    module(few)["energy"].sum().backward()
    module = model.trainable().double().train()
    with torch.no_grad():
        [parameter.add_(1e-9) for parameter in module.parameters()]
    record = hydragnn.save(module, out)
    assert all(one.training for one in module.modules()) and record.config["train"]["precision"] == "fp64"
    assert record.start.keys() == {"kept", OUTSIDE} and record.labels and record.continued == []
    energies, tuned = module.eval()(few)["energy"].detach().numpy(), hydragnn.load(out)
    np.testing.assert_allclose(tuned.predict(few)["energy"].mean, energies, rtol=1e-12)
    single, place = tuned.trainable().float(), written(tmp_path / "few.h5", few, **PLAIN)
    again = hydragnn.save(single, tmp_path / "again", data=place)
    assert again.config["train"]["precision"] == "fp32" and again.labels == {}


@pytest.mark.parametrize("gone", [False, True])
def test_no_graph_is_predicted_without_the_transform_of_training(
    gone: bool, store: MemoryStore, frames: list[Atoms], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "_allowed", {"numpy"})
    merged = {"cutoff": 4.5, "merged": [{"build": {**CHANGED["build"], "texts": ["a"]}}, {"build": CHANGED["build"]}]}
    path, build = written(tmp_path / "changed.h5", store[:24], **merged), tmp_path / "BUILD.toml"
    train(config_of(path, train__epochs=1), tmp_path / "run")
    if gone:  # the record of the run knows it, too
        shutil.rmtree(path)
    model = hydragnn.load(tmp_path / "run")
    refused("changed by numpy:copy, which is for files", model.predict, frames[:2])
    words = "not changed by a transform, and graphs of training are changed by numpy:copy"
    refused(f"Data are {words}", model.predict, store.to_pyg()[0])
    refused(f"the store are {words}", model.predict, MemoryStore(store[:2], PLAIN))
    build.write_text('kind = "ase"\nfiles = ["a.xyz"]\ncutoff = 4.5\n')
    (tmp_path / "a.xyz").touch()
    refused(f"BUILD.toml are {words}", rule_for, build, model)
    assert build.write_text(f'{build.read_text()}transform = "numpy:copy"\n') and rule_for(build, model)
    assert all(len(model.predict(MemoryStore(store[:2], taken))) == 2 for taken in (CHANGED, {"cutoff": 4.5}))
