#!/usr/bin/env bash
# Lay the rooms out as one package in .links/, for tools that cannot follow the mapping of pyproject.toml (mypy, import-linter).
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .links/hydragnn
find .links -type l -delete
for entry in hydragnn/*; do
    case "$entry" in *__pycache__) ;; *) ln -s "../../$entry" ".links/hydragnn/$(basename "$entry")" ;; esac
done
for room in graphs datasets hpo ensemble scripts; do
    ln -s "../../$room" ".links/hydragnn/$room"
done
