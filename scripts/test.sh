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
echo "== import directions; docstrings and names; mypy --strict, which runs beside them"
bash scripts/links.sh
words=$(mktemp)
(cd .links && exec mypy --config-file ../pyproject.toml -p hydragnn) >"$words" 2>&1 &
types=$!
# compiles the checks of annotations into every module, which each of the processes below would do
python -m pytest --collect-only -q "$@" >/dev/null 2>&1 &
modules=$!
trap 'kill "$types" "$modules" 2>/dev/null || true; rm -f "$words"' EXIT
failed=0
(cd .links && PYTHONPATH=. lint-imports --config ../pyproject.toml) || failed=1
python -m tests.style || failed=1
wait "$types" || failed=1
wait "$modules" || true
cat "$words"
rm "$words"
trap - EXIT
[ "$failed" = 0 ]
echo "== tests"
# three processes even on two cores, since tests of schedulers and of interrupted processes mostly wait
exec python -m pytest -n "${TEST_PROCESSES:-3}" --dist worksteal "$@"
