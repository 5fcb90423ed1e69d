#!/usr/bin/env bash
# What a GPU alone can show, in at most 4 minutes: bash tests/benchmarks/gpu.sh [FOLDER [--cpu]]
# FOLDER (gpu-results) gets results.jsonl, rows as they come, and the log of every part. Without a GPU it ends with 2; --cpu tests it on small sizes.
set -u
cd "$(dirname "$0")/../.." || exit 1
limit=${LIMIT:-235} python=${PYTHON:-python} out=$(mkdir -p "${1:-gpu-results}" && cd "${1:-gpu-results}" && pwd)
more=${2:-}
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

part() { # LOG SECONDS PART...: a part, at most so long and never beyond the limit
    local log=$out/$1.log most=$2 begin=$SECONDS left=$((limit - SECONDS))
    shift 2
    [ $left -lt 5 ] && { echo "no time left: $*"; return; }
    timeout -k 2 $((most < left ? most : left)) "$python" -m tests.benchmarks.gpu "$@" --out "$out/results.jsonl" $more >"$log" 2>&1
    local code=$?
    echo "$((SECONDS - begin)) s, code $code, at $SECONDS s: $*"
    return $code
}

part machine 60 machine >"$out/machine.txt" || { code=$?; tail -n 1 "$out/machine.log"; exit $code; }
# what is not timed, beside each other
export OMP_NUM_THREADS=1
for precision in fp32 bf16; do part warm-$precision 75 steps --warm --works "painn:32:$precision,schnet:32:$precision,egnn:32:$precision,pna:32:$precision" & done
part warm-mace 75 steps --warm --works mace:32:fp32 &
part ops 75 ops &
part runs 85 runs &
wait
unset OMP_NUM_THREADS
# one after the other, the most valuable first
part steps 100 steps
part speed 45 speed
part dynamics 40 dynamics
