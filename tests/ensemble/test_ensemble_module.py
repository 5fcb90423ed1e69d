"""Loaded models as modules of torch, for any kind of graphs; members load as the runs that they were."""

import copy
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from torch.utils.data import DataLoader

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, open_store
from hydragnn.ensemble import Ensemble, build_ensemble, calculator
from hydragnn.graphs.pyg import torch_geometric
from hydragnn.models import load_model

SOURCES: dict[str, Callable[[MemoryStore, list[Atoms]], Any]] = {
    "a batch": lambda store, frames: store[:6],
    "graphs": lambda store, frames: list(store)[:6],
    "a store": lambda store, frames: MemoryStore(store[:6], store.attributes),
    "structures": lambda store, frames: frames[:6],
    "a batch of torch_geometric": lambda store, frames: torch_geometric("data").Batch.from_data_list(
        [store.to_pyg()[number] for number in range(6)]
    ),
    "data of torch_geometric": lambda store, frames: [store.to_pyg()[number] for number in range(6)],
    "data without edges": lambda store, frames: [
        torch_geometric("data").Data(z=torch.tensor(one.numbers), pos=torch.tensor(one.positions)) for one in frames[:6]
    ],
    "a dataset": lambda store, frames: MemoryStore(store[:6]).to_pyg(),
}


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
            loss = (values["energy"] - batch["energy"]).square().mean() + (
                values["forces"] - batch["forces"]
            ).square().mean()
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
    torch.testing.assert_close(of_run, load_model(runs[0] / "model").states(store[:3]))
    assert hydragnn.load(ensemble).embeddings(store[:3]).shape[1] == 36


def test_a_model_is_found_by_all_its_paths(
    runs: list[Path], ensemble: Path, store: MemoryStore, tmp_path: Path
) -> None:
    expected = hydragnn.load(runs[0]).predict(store[:2])["energy"].mean
    for path in (str(runs[0]), runs[0] / "model", str(runs[0] / "model")):
        np.testing.assert_array_equal(hydragnn.load(path).predict(store[:2])["energy"].mean, expected)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")
    with pytest.raises(InputError, match="is a model without its run"):
        hydragnn.load(tmp_path / "model")
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
        (3, "not int"),
        ([], "no structure to predict"),
        ("in.xyz", "in.xyz does not exist"),
        (__file__, r"is no store; predict files with hydragnn.predict"),
        ([np.zeros(3)], "not numpy's ndarray"),
        (torch_geometric("data").HeteroData(), "not torch_geometric's HeteroData"),
    ],
    ids=["a number", "nothing", "no file", "a file", "arrays", "relations"],
)
def test_what_is_no_graph_gets_a_sentence(wrong: Any, words: str, runs: list[Path]) -> None:
    with pytest.raises(InputError, match=words):
        Ensemble.load(runs[0]).predict(wrong)


def test_edges_of_another_rule_are_refused(runs: list[Path], store: MemoryStore) -> None:
    data = store.to_pyg()[3]
    data.edge_index, data.edge_shifts = data.edge_index[:, :4], data.edge_shifts[:4]
    model = hydragnn.load(runs[0])
    for use in (model.trainable(), model.predict):
        with pytest.raises(InputError, match=r"has 4 edges, and those of training \(cutoff = 4.5\) would be"):
            use([data])
    with pytest.raises(InputError, match="have 2 coordinates, and those of atoms 3"):
        model.graphs(torch_geometric("data").Data(z=torch.tensor([29]), pos=torch.zeros(1, 2)))


def test_edges_of_another_rule_are_refused_where_only_large_graphs_tell(runs: list[Path]) -> None:
    make = torch_geometric("data").Data
    chain = torch.arange(4)[:, None] * torch.tensor([2.5, 0.0, 0.0])
    ends = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])  # within 3, and training had 4.5
    data = [make(z=torch.full((size,), 29), pos=chain[:size], edge_index=ends[:, : 2 * size - 2]) for size in (2, 4)]
    model = hydragnn.load(runs[0])
    assert model.trainable()(data[:1])["energy"].isfinite().all()
    model.predict([data[0]])
    data[1].pos = chain * 0.8  # second neighbours are 4 apart
    for use in (model.graphs, model.predict):
        with pytest.raises(
            InputError, match=r"graph 1 of torch_geometric's Data has 6 edges, and those .* would be 10"
        ):
            use(data)


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
    copy = atoms.copy()
    copy.calc = calculator(model, outside="record")
    return float(copy.get_potential_energy())


@pytest.mark.parametrize(
    "door",
    [
        lambda folder, atoms: energy_of(folder, atoms),
        lambda folder, atoms: energy_of(str(folder), atoms),
        lambda folder, atoms: energy_of(hydragnn.load(folder), atoms),
        lambda folder, atoms: energy_of(Ensemble.load(folder, dtype=torch.float64), atoms),
    ],
    ids=["calculator", "calculator of a text", "load", "load in double precision"],
)
def test_a_member_has_the_energy_of_its_run(
    door: Callable[[Path, Atoms], float], ensemble: Path, runs: list[Path], frames: list[Atoms]
) -> None:
    for number, run in enumerate(runs):
        assert door(ensemble / "members" / str(number), frames[3]) == pytest.approx(door(run, frames[3]), abs=1e-6)


def test_a_member_predicts_a_store_as_its_run(ensemble: Path, runs: list[Path], store: MemoryStore) -> None:
    own, other = (hydragnn.predict(one, store)["forces"]["mean"] for one in (ensemble / "members" / "1", runs[1]))
    np.testing.assert_allclose(own, other, atol=1e-6)


def test_members_become_an_ensemble_again(
    ensemble: Path, store: MemoryStore, frames: list[Atoms], tmp_path: Path
) -> None:
    members = [ensemble / "members" / number for number in "02"]
    build_ensemble(members, tmp_path / "again", store=store)
    energies = [energy_of(member, frames[0]) for member in members]
    assert min(energies) - 1e-6 <= energy_of(tmp_path / "again", frames[0]) <= max(energies) + 1e-6


def test_a_member_without_its_weights_is_damaged(received: Path) -> None:
    (received / "members" / "0" / "weights.safetensors").unlink()
    with pytest.raises(InputError, match=r"weights\.safetensors"):
        calculator(received / "members" / "0")
    shutil.copyfile(received / "members" / "1" / "weights.safetensors", received / "members" / "0" / "model.json")
    with pytest.raises(InputError, match=r"model\.json"):
        calculator(received / "members" / "0")
