#!/usr/bin/env bash
# Set up everything and run the main job once on three scales: search, top-3, ensemble, report.
# Usage: bash scripts/quickstart.sh [options of `hydragnn quickstart`]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
make_environment mpi,demo
exec hydragnn quickstart "$@"
