#!/bin/bash
# An environment of its own for DeepHyper beside bench_samplers: bash tests/benchmarks/samplers.sh DIRECTORY
# It borrows what lies beside torch from the Python that runs this project; nothing is installed into that one.
set -e
python -m venv "$1"
here=$(python -c "import torch, pathlib; print(pathlib.Path(torch.__file__).parent.parent)")
there=$("$1/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
echo "$here" > "$there/borrowed.pth"
# mpi4py, which is borrowed and which DeepHyper imports, looks for MPI in the environment that it runs in
ln -sf "$here"/../../libmpi* "$here"/../../mpich "$1/lib/"
"$1/bin/pip" install --quiet deephyper==0.13.2
