"""What every run owes; numbers are those of ``tests/contracts/test_silent_failures.py``."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore, make_split
from hydragnn.models.heads.kinds import LOSSES
from hydragnn.record import read_record
from hydragnn.training.loop import take_step
from tests.hydragnn.training.conftest import STORE, RunOnce, Trained, assembled, branched, make_config

ENERGY = {"kind": "energy", "field": "energy", "references": True, "hidden_dims": [8]}


def with_labels(store: MemoryStore, **labels: torch.Tensor) -> MemoryStore:
    graphs = store.read(range(len(store)))
    return MemoryStore(graphs.with_fields(labels), dict(store.attributes))


EQUIVARIANT = {"kind": "equivariant", "heads": 2, "cutoff": 7.0}


@pytest.mark.parametrize(
    ("model", "attention"),
    [
        *((kind, {"kind": "multihead", "heads": 2}) for kind in ("painn", "dimenet", "pna")),
        ("mace", EQUIVARIANT),
    ],
)
def test_an_epoch_moves_every_weight_of_the_trunk_and_of_all_branches(model: str, attention: dict[str, Any]) -> None:
    """5. Embeddings, radial functions and attention included; a lone weight that nothing depends on would stay."""
    one = make_config(model, train__weight_decay=0.0, model__global_attention=attention)
    charge = {"kind": "scalar", "field": "charge", "hidden_dims": [8]}
    config = branched(one, {"metals": [ENERGY, charge], "oxides": [ENERGY]})
    run = assembled(config, {"metals": STORE, "oxides": STORE})
    before = {name: value.detach().clone() for name, value in run.state.model.named_parameters()}
    for share in run.data.epoch(0):
        take_step(run.state, share, run.context, 1e-2)
    assert {name.split(".")[0] for name in before} >= {"trunk", "heads"}
    assert [name for name, one in run.state.model.named_parameters() if torch.equal(one, before[name])] == []


@pytest.mark.parametrize("layers", [0, 1])
def test_branches_that_have_heads_on_nodes_only_learn_each_their_own(layers: int, trained: Trained) -> None:
    """7 and 8. The second branch has the charges of the first with another sign, which one head for both could not learn."""
    head = {"kind": "scalar", "field": "charge", "hidden_dims": [8], "conv_layers": layers}
    graphs = STORE.read([number for number in range(len(STORE)) if number % 5 != 4])  # those that have charges
    turned = MemoryStore(graphs.with_fields({"charge": -graphs["charge"]}), dict(STORE.attributes))
    config = branched(make_config(train__epochs=15), {"metals": [head], "oxides": [head]})
    record = trained("run", config, store={"metals": STORE, "oxides": turned})
    for branch in ("metals", "oxides"):
        assert record.best[f"valid/charge@{branch}/mae"] < record.trivial[f"valid/charge@{branch}/mae"]


def test_in_double_precision_a_million_electronvolts_on_every_atom_change_no_curve(trained: Trained) -> None:
    """9. References take the million off; in single precision it would have taken the last 0.06 eV of every label."""
    graphs = STORE.read(range(len(STORE)))
    high = with_labels(STORE, energy=graphs["energy"] + 1e6 * graphs.counts("node"))
    runs = [trained(name, heads=[ENERGY], store=data) for name, data in (("low", STORE), ("high", high))]
    curves = [run.curves["valid/energy/mae"] for run in runs]
    # 7e6 has 16 digits in float64, and what is learned is of order 0.1: 1e-8 of it is rounding
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_and_one_that_there_is_not_is_refused(loss: str, trained: Trained) -> None:
    """10."""
    head = {"kind": "scalar", "field": "charge", "loss": loss, "distribution": "gaussian" if loss == "nll" else "point"}
    curve = trained(heads=[head]).curves["train/loss"]
    assert curve[-1] < curve[0]
    with pytest.raises(InputError, match=r"loss.*smooth_l1"):
        trained("refused", heads=[{**head, "loss": "smooth_l1"}])


@pytest.mark.parametrize("optimizer", [None, "adamw", "sgd"])
def test_what_a_configuration_leaves_out_trains(optimizer: str | None, trained: Trained) -> None:
    """11."""
    heads = [{"kind": "scalar", "field": "energy"}]
    table: dict[str, Any] = {"data": {"store": "in memory"}, "model": {"kind": "schnet"}, "heads": heads}
    config = RunConfig.parse(table if optimizer is None else {**table, "train": {"optimizer": optimizer}})
    assert np.isfinite(trained("run", config, until=1).curves["valid/loss"]).all()


def test_variables_of_the_environment_turn_nothing_off(
    trained: Trained, run_once: RunOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20. With names that other programs of this kind listen to."""
    expected = read_record(run_once(make_config()))
    monkeypatch.setenv("HYDRAGNN_VALTEST", "0")
    monkeypatch.setenv("HYDRAGNN_MAX_NUM_BATCH", "1")
    actual = trained()
    assert actual.curves["valid/loss"] == expected.curves["valid/loss"]
    assert len(actual.curves["valid/loss"]) == 3
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_labels_of_the_test_part_change_no_bit_of_a_run(trained: Trained, run_once: RunOnce) -> None:
    """21."""
    split = make_split(STORE, make_config().split)
    assert len(split.test)
    energy = STORE.read(range(len(STORE)))["energy"].clone()
    energy[torch.from_numpy(split.test)] += 1e3
    plain, spoiled = read_record(run_once(make_config())), trained(store=with_labels(STORE, energy=energy))
    assert all(plain.curves[name] == spoiled.curves[name] for name in ("train/loss", "valid/loss"))
    assert not [name for name in spoiled.curves if name.startswith("test/")]
