#!/usr/bin/env bash
# Import every module and run a small search, ensemble, prediction and report with the oldest and with the newest versions
# that pyproject.toml allows, each in an environment of its own, and print a table. Needs the network and some GB of disk.
# Usage: bash scripts/versions.sh [PYTHON ...]   (default: python3.11 python3.12 python3.13, on the PATH or of pyenv)
set -euo pipefail
cd "$(dirname "$0")/.."
work="$(mktemp -d)" failed=0 rows=()
trap 'rm -rf "$work"' EXIT
mkdir "$work/source" # a copy, since building leaves files beside the source
git ls-files -z | tar --create --null --files-from - | tar --extract --directory "$work/source"
[ $# -gt 0 ] || set -- python3.11 python3.12 python3.13
export OMP_NUM_THREADS=1

found() { # the path of a Python that runs, by its name, or nothing
    local python
    for python in "$(command -v "$1")" "${PYENV_ROOT:-$HOME/.pyenv}/versions/${1#python}".*/bin/python; do
        if "$python" -c "" 2>/dev/null; then
            echo "$python"
            return
        fi
    done
}

python3 -m venv "$work/tools" && "$work/tools/bin/python" -m pip install --quiet uv
uv="$work/tools/bin/uv"
cpu=() # torch without CUDA, where its index can be reached
curl --silent --fail --head --max-time 20 --output /dev/null https://download.pytorch.org/whl/cpu/torch/ && cpu=(--torch-backend cpu)

wheels=() # of all dependencies, since the oldest ones would be compiled with an MPI and an HDF5 that may not be there
while read -r package; do wheels+=(--only-binary "$package"); done < <(python3 - <<'PYTHON'
import re, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
for line in (*project["dependencies"], *project["optional-dependencies"]["mpi"], *project["optional-dependencies"]["demo"]):
    print(re.match(r"[\w-]+", line)[0])
PYTHON
)

cat >"$work/check.py" <<'PYTHON'
import importlib, pkgutil, subprocess, sys, warnings
from importlib.metadata import version
from pathlib import Path

warnings.filterwarnings("error", module=r"hydragnn\.")
names = ("torch", "numpy", "scipy", "h5py", "optuna", "pydantic", "jaxtyping", "ase")
print("VERSIONS", " ".join(f"{name} {version(name)}" for name in names), flush=True)
import hydragnn

for module in pkgutil.walk_packages(hydragnn.__path__, "hydragnn."):
    try:
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name not in ("pytest", "triton"):  # of extras that are not installed
            raise
from hydragnn.scripts import api
from hydragnn.scripts.demo import alloys
from hydragnn.base.settings import read_toml

out = Path(sys.argv[1])
alloys.make_alloys(out / "alloys.h5", samples=60)
table = read_toml(Path(alloys.__file__).with_name("alloys.toml"))
table["data"]["store"] = str(out / "alloys.h5")
table["train"]["epochs"] = 2
table["search"] |= {"trials": 2, "finalists": 2, "rungs": []}
api.search(table, out / "campaign", workers=1, quiet=True)
api.build_ensemble(out / "campaign", out / "ensemble", top_k=2)
api.predict(out / "ensemble", out / "alloys.h5", out / "predictions.h5")
api.report(out / "ensemble", out / "report.html")
campaign = [str(Path(alloys.__file__).with_name("alloys.toml")), "--set", f"data.store={out / 'alloys.h5'}"]
for words in (["--help"], ["plan", *campaign, "--ranks-per-node", "2", "--site", "frontier"]):  # what the shell offers, and layouts of ranks
    subprocess.run([sys.executable, "-m", "hydragnn", *words], check=True, stdout=subprocess.DEVNULL)
print("passed")
PYTHON

for name in "$@"; do
    python="$(found "$name" || true)"
    if [ -z "$python" ]; then
        rows+=("$name|-|not found|-")
        continue
    fi
    for which in oldest newest; do
        resolution=highest
        [ "$which" = newest ] || resolution=lowest-direct
        place="$work/$name-$which" log="$work/$name-$which.log" result=failed
        echo "== $name, $which versions"
        "$uv" venv --quiet --seed --python "$python" "$place" # with what python -m venv brings
        if "$uv" pip install --quiet --python "$place/bin/python" --resolution "$resolution" "${cpu[@]}" "${wheels[@]}" "$work/source[mpi,demo]" >"$log" 2>&1; then
            (mkdir "$place/out" && cd "$place/out" && "$place/bin/python" "$work/check.py" "$place/out") >>"$log" 2>&1 && result=passed
        fi
        if [ "$result" = failed ]; then
            failed=1
            tail -25 "$log"
        fi
        rows+=("$("$place/bin/python" -c 'import platform; print(platform.python_version())')|$which|$result|$(sed -n 's/^VERSIONS //p' "$log")")
        rm -rf "$place"
    done
done
printf '\n| Python | versions | result | which |\n|---|---|---|---|\n'
for row in "${rows[@]}"; do printf '| %s |\n' "${row//|/ | }"; done
exit "$failed"
