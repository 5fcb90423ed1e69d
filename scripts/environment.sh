# Sourced by quickstart.sh and test.sh: a virtual environment in .venv with this checkout installed.
# Usage: make_environment EXTRAS, for example make_environment mpi,demo
make_environment() {
    local extras="$1" python="${PYTHON:-python3}" stamp
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "error: $python is older than 3.11; set PYTHON=/path/to/python3.11" >&2
        exit 2
    }
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    stamp=".venv/.installed-$extras-$(cat pyproject.toml setup.py hydragnn/kernels/cpu/*.cpp hydragnn/kernels/cpu/*.h constraints.txt | cksum | tr ' ' '-')"
    if [ ! -f "$stamp" ]; then
        echo "Installing into .venv (a few minutes the first time) ..."
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable ".[$extras]"
        .venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true # on all cores, where pip takes one
        touch "$stamp"
    fi
    export PATH="$PWD/.venv/bin:$PATH"
}
