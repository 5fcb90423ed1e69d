"""schnetpack's PaiNN and SchNet as a peer of ``bench_peers``, with this project's weights: the same energies and forces.

python peer_schnetpack.py KIND FOLDER
"""

import sys
from pathlib import Path

import torch
from peer_worker import CUTOFF, HIDDEN, LAYERS, RADIAL, arguments, serve, serve_all, tensors, weights
from step_peers import schnetpack_inputs, schnetpack_network
from torch import Tensor, nn

State = dict[str, Tensor]
AMPLITUDE = (2 / CUTOFF) ** 0.5
"""Of our Bessel functions; theirs have none."""


def schnet_weights(ours: State) -> State:
    """Filters, and the constant beside our radial basis as part of their bias."""
    state = {}
    for layer in range(LAYERS):
        mine, theirs = f"encoder.layers.{layer}.", f"interactions.{layer}."
        first = ours[mine + "filters.0.weight"]
        state[theirs + "filter_network.0.weight"] = first[:, :RADIAL] * AMPLITUDE
        state[theirs + "filter_network.0.bias"] = ours[mine + "filters.0.bias"] + first[:, RADIAL]
        for part in ("weight", "bias"):
            state[f"{theirs}filter_network.1.{part}"] = ours[f"{mine}filters.2.{part}"]
            state[f"{theirs}f2out.0.{part}"] = ours[f"{mine}interaction.after.0.{part}"]
            state[f"{theirs}f2out.1.{part}"] = ours[f"{mine}interaction.after.2.{part}"]
        state[theirs + "in2f.weight"] = ours[mine + "interaction.before.weight"]
    return state


def painn_weights(ours: State) -> State:
    """What our first layer (no vectors come in) and our last (none go out) leave out is zero."""
    state: State = {}
    filters = torch.zeros(LAYERS, 3, HIDDEN, RADIAL + 1)
    for layer in range(LAYERS):
        mine = f"encoder.layers.{layer}."
        for part in range(2 if layer == 0 else 3):
            filters[layer, part] = ours[f"{mine}filters.{part}.weight"]
        mix = ours[mine + "update.mix.weight"]
        state[f"mixing.{layer}.mu_channel_mix.weight"] = torch.cat([mix[HIDDEN:], mix[:HIDDEN]])
        for part in ("weight", "bias"):
            for name, net, place in (
                ("message.states", f"interactions.{layer}.interatomic_context_net", [0, 1, 2]),
                ("update.gates", f"mixing.{layer}.intraatomic_context_net", [0, 2, 1]),
            ):
                state[f"{net}.0.{part}"] = ours[f"{mine}{name}.0.{part}"]
                last = ours[f"{mine}{name}.2.{part}"].split(HIDDEN)
                last = (*last, torch.zeros_like(last[0]))[:3]
                state[f"{net}.1.{part}"] = torch.cat([last[number] for number in place])
    rows = filters.flatten(0, 2)
    return {**state, "filter_net.weight": rows[:, :RADIAL] * AMPLITUDE, "filter_net.bias": rows[:, RADIAL]}


def model_of(kind: str, ours: State) -> nn.Module:
    """The potential with our weights."""
    potential = schnetpack_network(kind, hidden=HIDDEN, layers=LAYERS, radial=RADIAL, cutoff=CUTOFF)
    encoder, energy = potential.representation, potential.output_modules[0]
    translated = {"painn": painn_weights, "schnet": schnet_weights}[kind](ours)
    table = ours["node_inputs.node_tables.0.table.weight"] + ours["node_inputs.origin"]
    translated["embedding.weight"] = table[: len(encoder.embedding.weight)]
    encoder.load_state_dict({**encoder.state_dict(), **translated})
    for number, place in ((0, 0), (1, 2)):
        for part in ("weight", "bias"):
            parameter = getattr(energy.outnet[number], part)
            parameter.data.copy_(ours[f"heads.0.network.{place}.{part}"])
    return potential


def main() -> None:
    """Serve."""
    kind, folder, _ = arguments()

    def serve_one(folder: Path) -> Path | None:
        inputs, potential = schnetpack_inputs(tensors(folder)), model_of(kind, weights(folder, kind))

        def predict() -> list[Tensor]:
            results = potential(dict(inputs))
            return [results["energy"], results["forces"]]

        return serve(potential, predict)

    serve_all(folder, serve_one)


if __name__ == "__main__":
    sys.exit(main())
