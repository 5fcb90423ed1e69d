"""The 23 ways in which a program of this kind was wrong without a word, by number: what holds here instead, which tests say so, and a way to run them.

python -m tests.contracts.silent_failures 14                             # the tests of number 14, by pytest, which takes further options
python -m tests.contracts.silent_failures --out docs/silent-failures.md  # the page of all
"""

import argparse
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """What was wrong in the public HydraGNN, and what is true here."""

    there: str
    here: str
    tests: tuple[str, ...]
    """``file::function`` each; those of ``hydragnn/conformance/*.py`` run for every architecture."""
    seen: str = "run"
    """How it is known: run, read in its source, or in part read."""


HERE = "tests/hydragnn/test_promises_of_architectures.py"
RUNS = "tests/hydragnn/training/test_promises_of_runs.py"
EVERY = "hydragnn/conformance/suite.py"
LIMITS = "hydragnn/conformance/limits.py"
TRAINING = "tests/hydragnn/training"

PROMISES: dict[int, Promise] = {
    1: Promise(
        there="attention of GPS acts across the graphs of a mini-batch",
        here="attention among all nodes stays within each graph of a batch",
        tests=(
            f"{EVERY}::test_a_prediction_does_not_depend_on_what_else_is_in_its_batch",
            "tests/parity/test_networks.py::test_gps_equals_a_network_of_pytorch_geometrics_convolutions",
        ),
    ),
    2: Promise(
        there="parameters of graph attributes are not trained, differ between ranks, and are absent at inference",
        here="parameters of graph inputs are trained, equal on all ranks, and saved",
        tests=(
            f"{TRAINING}/test_conditioning.py::test_what_conditions_is_optimised_kept_and_saved",
            f"{EVERY}::test_every_parameter_has_a_say",
            f"{EVERY}::test_a_model_comes_back_from_disk_bit_for_bit",
        ),
    ),
    3: Promise(
        there="inference loads checkpoints of several ranks with `strict=False` and continues with random parameters",
        here="a model is loaded with all of its parameters, or not at all",
        tests=("tests/hydragnn/test_models.py::test_a_spoiled_model_folder_is_refused_in_one_sentence",),
    ),
    4: Promise(
        there="with FSDP2 a checkpoint keeps the shards of rank 0 (12 of 26 tensors were lost)",
        here="a checkpoint of several ranks holds all parameters, and any number of ranks can continue from it",
        tests=(
            f"{TRAINING}/test_checkpoint_resume.py::test_a_checkpoint_of_two_ranks_continues_on_one_and_three",
            f"{TRAINING}/test_tensor_files.py::test_a_tensor_in_pieces_of_several_files_is_put_together",
        ),
    ),
    5: Promise(
        there="in the task-parallel mode embeddings, frequencies of radial functions and encodings are in no optimizer",
        here="the optimizer changes every parameter of the encoder and of all heads",
        tests=(f"{RUNS}::test_an_epoch_moves_every_weight_of_the_trunk_and_of_all_branches",),
    ),
    6: Promise(
        there="SchNet ignores periodic images and the edges of the data set, and builds its own graph in every layer",
        here="a model reads the periodic images and the edges that the data have",
        tests=(
            f"{LIMITS}::test_a_repeated_cell_is_the_cell_so_many_times",
            f"{EVERY}::test_neighbours_matter",
            "tests/parity/test_networks.py::test_schnet_with_forces_equals_that_of_pytorch_geometric",
        ),
    ),
    7: Promise(
        there="with several branches of node heads only, one branch is trained",
        here="every branch learns, also with node heads only",
        tests=(f"{RUNS}::test_branches_that_have_heads_on_nodes_only_learn_each_their_own",),
    ),
    8: Promise(
        there="node heads with their own layers fail in two branches or more",
        here="heads with their own layers work in every branch",
        tests=(f"{RUNS}::test_branches_that_have_heads_on_nodes_only_learn_each_their_own",),
    ),
    9: Promise(
        there="in double precision the loss of energies and forces is computed in single precision",
        here="in double precision labels and loss have double precision",
        tests=(f"{RUNS}::test_in_double_precision_a_million_electronvolts_on_every_atom_change_no_curve",),
    ),
    10: Promise(
        there="an unknown activation or loss becomes None, and `smooth_l1` a class instead of a loss",
        here="every known loss trains, and an unknown one is refused by name",
        tests=(f"{RUNS}::test_every_loss_trains_and_one_that_there_is_not_is_refused",),
    ),
    11: Promise(
        there="the default optimizer is a missing key",
        here="a configuration without an optimizer trains, and so does every optimizer",
        tests=(f"{RUNS}::test_what_a_configuration_leaves_out_trains",),
    ),
    12: Promise(
        there="periodic structures fail in both loaders; descriptors fail, and so do encodings as wide as the number of nodes",
        here="every reader takes periodic structures, and encodings may be wider than the number of nodes",
        tests=(
            "tests/datasets/test_build.py::test_atoms_come_from_any_format_of_ase",
            "tests/graphs/test_atomic.py::test_edges_are_those_of_ase",
            "tests/graphs/test_encodings.py::test_lone_nodes_have_zeros",
        ),
    ),
    13: Promise(
        there="MACE uses the first of a list of correlations for all layers, and its Gaussian loss fails",
        here="a list is refused for a single number and used per layer where allowed; every architecture learns a Gaussian",
        tests=(
            f"{HERE}::test_a_list_in_the_place_of_a_number_is_refused",
            f"{HERE}::test_a_correlation_is_one_number_or_one_for_every_layer",
            f"{HERE}::test_every_layer_multiplies_as_many_factors_as_its_own_number_says",
            f"{EVERY}::test_every_output_has_its_fields_shape_and_is_finite_with_its_gradients",
        ),
    ),
    14: Promise(
        there="PaiNN gives NaN if two nodes coincide",
        here="coincident nodes give finite energies, forces and gradients",
        tests=(
            f"{LIMITS}::test_nodes_in_one_place_are_finite_with_forces_and_gradients",
            "tests/hydragnn/test_layers.py::test_an_edge_of_length_zero_is_finite_to_the_second_derivative",
        ),
    ),
    15: Promise(
        there="one reader chooses fields twice, another not at all",
        here="fields are chosen once, whichever way a store is read",
        tests=(
            "tests/contracts/test_stores.py::test_only_the_named_fields_are_read",
            "tests/contracts/test_stores.py::test_everything_comes_back_bit_for_bit",
        ),
        seen="in part read",
    ),
    16: Promise(
        there="random edges are added and radii grow silently",
        here="edges are exactly those within the cutoff; an isolated atom has none",
        tests=("tests/graphs/test_atomic.py::test_edges_are_those_of_ase",),
        seen="read",
    ),
    17: Promise(
        there="EGNN, PaiNN and PNAEq sum over the wrong ends of truncated edges",
        here="nodes sum the edges that they receive, of which the nearest are kept",
        tests=(
            f"{HERE}::test_messages_flow_from_senders_to_receivers",
            "tests/graphs/test_atomic.py::test_truncation_keeps_the_nearest_at_every_receiver",
            "tests/graphs/test_pyg.py::test_messages_flow_as_in_torch_geometric",
        ),
        seen="read",
    ),
    18: Promise(
        there="scales use all three parts; graphs of a unique composition are duplicated; a shuffle has no seed",
        here="scales use the training part only; no graph is in two parts; the seed decides",
        tests=(
            "tests/datasets/test_normalisation.py::test_the_validation_part_leaves_no_trace",
            "tests/datasets/test_split.py::test_every_graph_is_in_exactly_one_part",
            "tests/datasets/test_split.py::test_equal_compositions_stay_together_whatever_the_size_of_the_cell",
            "tests/datasets/test_split.py::test_the_seed_decides_and_nothing_else",
        ),
        seen="read",
    ),
    19: Promise(
        there="two tables number the data sets and contradict each other",
        here="data sets are identified by name, never by number",
        tests=(
            f"{TRAINING}/test_branches.py::test_each_branch_learns_and_predicts_in_its_own_units",
            f"{TRAINING}/test_branches.py::test_a_model_with_branches_asks_for_one_of_them",
        ),
        seen="read",
    ),
    20: Promise(
        there="`VALTEST=0` also turns off checkpoints, early stopping and the time limit",
        here="nothing outside the configuration turns off validation, checkpoints or early stopping",
        tests=(
            f"{RUNS}::test_variables_of_the_environment_turn_nothing_off",
            f"{TRAINING}/test_distributed_ranks.py::test_one_module_reads_the_environment_of_launchers",
        ),
        seen="read",
    ),
    21: Promise(
        there="the test part is evaluated every epoch; surplus batches are dropped; means of ranks are averaged without weights",
        here="training never reads the test part, uses every training graph, and weighs ranks by their graphs",
        tests=(
            f"{RUNS}::test_labels_of_the_test_part_change_no_bit_of_a_run",
            "tests/datasets/test_loader.py::test_an_epoch_serves_every_graph_once",
            f"{TRAINING}/test_distributed_ranks.py::test_two_ranks_take_the_steps_one_rank_would_with_energies_and_forces",
        ),
        seen="read",
    ),
    22: Promise(
        there="the initial bias is a missing key; batch norms are synchronised on GPUs only; dropout is no setting",
        here="dropout is a setting of every architecture, and outputs start at the mean of their labels",
        tests=(
            f"{HERE}::test_dropout_acts_in_training_and_never_at_prediction",
            f"{EVERY}::test_physical_predictions_undo_the_normalisation",
        ),
    ),
    23: Promise(
        there="an empty part of an ADIOS file is unreadable; ranks may disagree on shapes; names of data sets are lost",
        here="parts, writers and shares may be empty; shapes and names do not depend on the rank",
        tests=(
            "tests/datasets/test_disk.py::test_a_writer_without_graphs_among_others_is_fine",
            "tests/contracts/test_stores.py::test_no_graphs_are_a_batch_without_graphs",
            "tests/contracts/test_stores.py::test_three_writers_parts_are_read_by_two_ranks",
            f"{TRAINING}/test_training_step.py::test_a_share_without_graphs_takes_the_step_of_its_peers",
        ),
        seen="in part read",
    ),
}

PAGE = """# Twenty-three silent failures, and what holds here

Made by `python -m tests.contracts.silent_failures --out docs/silent-failures.md`.

The middle column is the public HydraGNN (release line v5.0, at commit d251f81627). Its runs ended without an error in most of these cases.
Each was observed by running that program, or read in its source where the line says so. On the right is what this program guarantees instead.

`python -m tests.contracts.silent_failures 14` runs the tests of number 14. All of these tests are part of `bash scripts/test.sh`.

| | in the public HydraGNN | here | tests |
|---|---|---|---|
"""


def page() -> str:
    """The table in Markdown."""
    lines = [
        f"| {number} | {promise.there}{'' if promise.seen == 'run' else f' ({promise.seen})'} | {promise.here} | {_links(promise.tests)} |"
        for number, promise in PROMISES.items()
    ]
    return PAGE + "\n".join(lines) + "\n"


def _links(tests: Sequence[str]) -> str:
    """The sentences that the tests are named for, each with a link to its file."""
    parts = (test.split("::") for test in tests)
    return "; ".join(f"[{name.removeprefix('test_').replace('_', ' ')}](../{file})" for file, name in parts)


class Only:
    """A plugin of pytest that keeps the tests that are defined where ``tests`` say, whichever class has inherited them."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.definitions = {(str(ROOT / file), name) for file, name in (test.split("::") for test in tests)}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out all other tests of the same files."""
        chosen = [item for item in items if _definition(item) in self.definitions]
        config.hook.pytest_deselected(items=[item for item in items if _definition(item) not in self.definitions])
        items[:] = chosen


def _definition(item: Any) -> tuple[str, str]:
    """The file and the name of a test's function; of a doctest, those of nothing."""
    function = inspect.unwrap(getattr(item, "function", _definition))
    return str(Path(function.__code__.co_filename).resolve()), function.__name__


def run(numbers: Sequence[int], options: Sequence[str] = ()) -> int:
    """Run the tests of some numbers; the exit code is that of pytest."""
    tests = [test for number in numbers for test in PROMISES[number].tests]
    files = (test.split("::")[0] for test in tests)
    collected = dict.fromkeys("tests/contracts/test_models.py" if file in (EVERY, LIMITS) else file for file in files)
    places = [str(ROOT / file) for file in collected]
    return int(pytest.main(["-q", "--rootdir", str(ROOT), *options, *places], plugins=[Only(tests)]))


def main() -> int:
    """Run the tests of the numbers that are given; without any, write or print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", type=int, nargs="*", metavar="NUMBER", help="1 to 23")
    parser.add_argument("--out", type=Path, help="a Markdown file, replaced where there is one")
    given, options = parser.parse_known_args()
    if unknown := [number for number in given.numbers if number not in PROMISES]:
        parser.error(f"there is no number {unknown[0]}; give some of 1 to {len(PROMISES)}")
    if given.numbers:
        return run(given.numbers, options)
    if options:
        parser.error(f"unknown: {' '.join(options)}")
    print(page(), end="") if given.out is None else given.out.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
