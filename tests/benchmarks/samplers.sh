#!/bin/bash
# What our samplers find beside DeepHyper's CBO and Optuna's own, as one table: bash tests/benchmarks/samplers.sh DIRECTORY [--seeds 10 ...]
# DIRECTORY gets an environment of its own for DeepHyper, which borrows what lies beside torch from the Python that runs this
# project (nothing is installed into that one), and keeps what was found: the same command goes on where it was stopped.
set -e
if [ ! -e "$1/found.jsonl" ]; then
    python -m venv "$1"
    here=$(python -c "import torch, pathlib; print(pathlib.Path(torch.__file__).parent.parent)")
    there=$("$1/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
    echo "$here" > "$there/borrowed.pth"
    # mpi4py, which is borrowed and which DeepHyper imports, looks for MPI in the environment that it runs in
    ln -sf "$here"/../../libmpi* "$here"/../../mpich "$1/lib/"
    "$1/bin/pip" install --quiet --constraint "$(dirname "$0")/../../constraints.txt" deephyper==0.13.2
    touch "$1/found.jsonl"
fi
PYTHONPATH=$(dirname "$0")/../.. "$1/bin/python" "$(dirname "$0")/bench_samplers.py" --workers 64 --trials 150 --first-seed 8 --seeds 3 \
    --samplers random gp tpe optuna-plain deephyper --results "$1/found.jsonl" "${@:2}"
