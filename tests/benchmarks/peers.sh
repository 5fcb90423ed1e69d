#!/bin/bash
# An environment of its own for the peers of bench_peers and bench_kinds: bash tests/benchmarks/peers.sh DIRECTORY
# It borrows torch and what lies beside it from the Python that runs this project; nothing is installed into that one. What cannot be
# installed is left out, and the exit code is 1; the same command again installs what is missing.
set -e
python -m venv "$1"
here=$(python -c "import torch, pathlib; print(pathlib.Path(torch.__file__).parent.parent)")
there=$("$1/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
echo "$here" > "$there/borrowed.pth"
code=0
"$1/bin/pip" install --quiet hydra-core hydra-colorlog pytorch-lightning torchmetrics fasteners dirsync torch-ema matscipy \
    tensorboard tensorboardX tqdm psutil opt_einsum_fx prettytable configargparse GitPython python-hostlist lmdb pandas warp-lang==1.19.0 || code=1
# schnetpack wants sympy 1.12, and with it a torch of years ago; HydraGNN wants torch-scatter, which its layers do not import;
# mace-torch wants e3nn 0.4.4, which lies here before the borrowed one
for peer in schnetpack==2.1.1 HydraGNN==3.0 torchmd-net==3.1.0 "mace-torch==0.3.16 e3nn==0.4.4"; do
    "$1/bin/pip" install --quiet --no-deps $peer || code=1
done
exit $code
