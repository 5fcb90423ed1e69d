#!/usr/bin/env bash
# Set up everything and run every check and every test. Usage: bash scripts/test.sh [options of pytest]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
make_environment test
export OMP_NUM_THREADS=1
unset PYTHONDONTWRITEBYTECODE # the checks of annotations are compiled into every module, ten seconds per process
echo "== ruff"
ruff format --check .
ruff check .
echo "== mypy --strict"
bash scripts/links.sh
(cd .links && mypy --config-file ../pyproject.toml -p hydragnn)
echo "== import directions"
(cd .links && PYTHONPATH=. lint-imports --config ../pyproject.toml)
echo "== docstrings and names"
python -m tests.style
echo "== tests"
# three processes even on two cores, since tests of schedulers and of interrupted processes mostly wait
exec python -m pytest -n "${TEST_PROCESSES:-3}" --dist worksteal "$@"
