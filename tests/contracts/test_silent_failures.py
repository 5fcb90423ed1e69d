"""Twenty-three ways in which a program of this kind can be wrong without a word, as the public HydraGNN was: each has its tests here.

A line says what is true of this program instead, and which tests hold it to that.
"""

import ast
from pathlib import Path

import pytest

HERE = "tests/hydragnn/test_promises_of_architectures.py"
RUNS = "tests/hydragnn/training/test_promises_of_runs.py"
EVERY = "hydragnn/conformance.py"
LIMITS = "hydragnn/conformance_limits.py"
TRAINING = "tests/hydragnn/training"

PROMISES: dict[int, tuple[str, list[str]]] = {
    1: (
        "attention among all nodes stays within each graph of a batch",
        [
            f"{EVERY}::test_a_prediction_does_not_depend_on_what_else_is_in_its_batch",
            "tests/parity/test_networks.py::test_gps_equals_a_network_of_pytorch_geometrics_convolutions",
        ],
    ),
    2: (
        "weights that graph inputs act through are trained, the same on all ranks, and saved",
        [
            f"{TRAINING}/test_conditioning.py::test_what_conditions_is_optimised_kept_and_saved",
            f"{EVERY}::test_every_parameter_has_a_say",
            f"{EVERY}::test_a_model_comes_back_from_disk_bit_for_bit",
        ],
    ),
    3: (
        "a model is loaded with every weight that it has, or not at all",
        ["tests/hydragnn/test_models.py::test_a_spoiled_model_folder_is_refused_in_one_sentence"],
    ),
    4: (
        "a checkpoint of several ranks holds all weights, and any number of ranks goes on from it",
        [
            f"{TRAINING}/test_checkpoint_resume.py::test_a_checkpoint_of_two_ranks_continues_on_one_and_three",
            f"{TRAINING}/test_tensor_files.py::test_a_tensor_in_pieces_of_several_files_is_put_together",
        ],
    ),
    5: (
        "the optimizer moves every weight of the trunk and of all heads",
        [f"{RUNS}::test_an_epoch_moves_every_weight_of_the_trunk_and_of_all_branches"],
    ),
    6: (
        "a model reads the periodic images and the edges that the data have",
        [
            f"{HERE}::test_a_supercell_has_the_energy_of_its_cells",
            f"{LIMITS}::test_a_repeated_cell_is_the_cell_so_many_times",
            f"{EVERY}::test_neighbours_matter",
            "tests/parity/test_networks.py::test_schnet_with_forces_equals_that_of_pytorch_geometric",
        ],
    ),
    7: (
        "every branch learns, also where all heads are about nodes",
        [f"{RUNS}::test_branches_that_have_heads_on_nodes_only_learn_each_their_own"],
    ),
    8: (
        "heads with layers of their own work in every branch",
        [f"{RUNS}::test_branches_that_have_heads_on_nodes_only_learn_each_their_own"],
    ),
    9: (
        "in double precision labels and loss have double precision",
        [f"{RUNS}::test_in_double_precision_a_million_electronvolts_on_every_atom_change_no_curve"],
    ),
    10: (
        "every loss that there is trains, and another is refused by name",
        [f"{RUNS}::test_every_loss_trains_and_one_that_there_is_not_is_refused"],
    ),
    11: (
        "a configuration without optimizer trains, and so does every optimizer",
        [f"{RUNS}::test_what_a_configuration_leaves_out_trains"],
    ),
    12: (
        "periodic structures become stores through every reader, and encodings may be wider than a graph has nodes",
        [
            "tests/datasets/test_build.py::test_atoms_come_from_any_format_of_ase",
            "tests/graphs/test_atomic.py::test_edges_are_those_of_ase",
            "tests/graphs/test_encodings.py::test_lone_nodes_have_zeros",
        ],
    ),
    13: (
        "lists are refused where a setting is one number, reach every layer where it is one for each, and every architecture learns a spread",
        [
            f"{HERE}::test_a_list_in_the_place_of_a_number_is_refused",
            f"{HERE}::test_a_correlation_is_one_number_or_one_for_every_layer",
            f"{HERE}::test_every_layer_multiplies_as_many_factors_as_its_own_number_says",
            f"{EVERY}::test_every_output_has_its_fields_shape_and_is_finite_with_its_gradients",
        ],
    ),
    14: (
        "nodes in one place give finite energies, forces and gradients",
        [
            f"{LIMITS}::test_nodes_in_one_place_are_finite_with_forces_and_gradients",
            "tests/hydragnn/test_layers.py::test_an_edge_of_length_zero_is_finite_to_the_second_derivative",
        ],
    ),
    15: (
        "fields are chosen once, whichever way a store is read",
        [
            "tests/contracts/test_stores.py::test_only_the_named_fields_are_read",
            "tests/contracts/test_stores.py::test_everything_comes_back_bit_for_bit",
        ],
    ),
    16: (
        "edges are those within the cutoff, none for an atom alone",
        ["tests/graphs/test_atomic.py::test_edges_are_those_of_ase"],
    ),
    17: (
        "nodes sum the edges of which the nearest are kept: those that they receive",
        [
            f"{HERE}::test_messages_flow_from_senders_to_receivers",
            "tests/graphs/test_atomic.py::test_truncation_keeps_the_nearest_at_every_receiver",
            "tests/graphs/test_pyg.py::test_messages_flow_as_in_torch_geometric",
        ],
    ),
    18: (
        "no part of the data knows of another: scales are those of the training part, no graph is in two parts, the seed decides",
        [
            "tests/datasets/test_normalisation.py::test_the_validation_part_leaves_no_trace",
            "tests/datasets/test_split.py::test_every_graph_is_in_exactly_one_part",
            "tests/datasets/test_split.py::test_equal_compositions_stay_together_whatever_the_size_of_the_cell",
            "tests/datasets/test_split.py::test_the_seed_decides_and_nothing_else",
        ],
    ),
    19: (
        "data sets are told apart by the names that they were given, never by numbers",
        [
            f"{TRAINING}/test_branches.py::test_each_branch_learns_and_predicts_in_its_own_units",
            f"{TRAINING}/test_branches.py::test_a_model_with_branches_asks_for_one_of_them",
        ],
    ),
    20: (
        "nothing outside of the configuration turns validation, checkpoints or early stops off",
        [
            f"{RUNS}::test_variables_of_the_environment_turn_nothing_off",
            f"{TRAINING}/test_distributed_ranks.py::test_one_module_reads_the_environment_of_launchers",
        ],
    ),
    21: (
        "training never looks at the test part, shows every training graph, and weighs ranks by their graphs",
        [
            f"{RUNS}::test_labels_of_the_test_part_change_no_bit_of_a_run",
            "tests/datasets/test_loader.py::test_an_epoch_serves_every_graph_once",
            f"{TRAINING}/test_distributed_ranks.py::test_two_ranks_take_the_steps_one_rank_would_with_energies_and_forces",
        ],
    ),
    22: (
        "dropout is a setting that every architecture follows, and outputs begin at the mean of their labels",
        [
            f"{HERE}::test_dropout_acts_in_training_and_never_at_prediction",
            f"{EVERY}::test_physical_predictions_undo_the_normalisation",
        ],
    ),
    23: (
        "a part, a writer or a share without graphs is fine, and shapes and names do not depend on the rank",
        [
            "tests/datasets/test_disk.py::test_a_writer_without_graphs_among_others_is_fine",
            "tests/contracts/test_stores.py::test_no_graphs_are_a_batch_without_graphs",
            "tests/contracts/test_stores.py::test_three_writers_parts_are_read_by_two_ranks",
            f"{TRAINING}/test_training_step.py::test_a_share_without_graphs_takes_the_step_of_its_peers",
        ],
    ),
}


def names_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_number_has_its_promise() -> None:
    assert list(PROMISES) == list(range(1, 24))


@pytest.mark.parametrize("number", PROMISES)
def test_the_tests_of_every_promise_are_there(number: int, root: Path) -> None:
    sentence, tests = PROMISES[number]
    assert tests, sentence
    for test in tests:
        path, name = test.split("::")
        assert name in names_in(root / path), test
