"""mace-torch's MACE as a peer of ``bench_kinds``, with weights of its own.

python peer_mace.py mace FOLDER
"""

import sys

from peer_worker import CUTOFF, HIDDEN, arguments, serve, serve_all, tensors
from step_peers import mace_potential

SIZES = {"hidden": HIDDEN, "layers": 2, "radial": 8, "cutoff": CUTOFF}


def main() -> None:
    """Serve."""
    kind, folder, _ = arguments()
    serve_all(folder, lambda folder: serve(*mace_potential(kind, tensors(folder), **SIZES), weights_alone=True))


if __name__ == "__main__":
    sys.exit(main())
