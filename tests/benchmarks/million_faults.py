"""A million faults in random campaigns: the figures, or the first campaign in which something did not hold.

    python tests/benchmarks/million_faults.py --faults 1000000 --processes 2

Campaigns of 1 to 30 trials on 1 to 36 slots see lost nodes, failed launches, preemptions, memory that runs out, failures of
their own, nodes found sick, probes without an answer, killed controllers, cabinets lost at once, storms of failing launches, nodes
that fail after 20 minutes, and ends that are reported twice. tests/hpo/clockwork.py says what must
hold: no trial lost, none run or settled twice, no slot given twice, no budget exceeded, no machine fault told as a failure,
no node used before its probe, and from everywhere a way to the end.
"""

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "hpo"))
from clockwork import storms

PORTION = 5000


def portion(seed: int, faults: int) -> "Counter[str]":
    """What one process saw."""
    seen: Counter[str] = storms(faults, seed)
    return seen


def main() -> int:
    """Run all storms and print what they saw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the counts as one JSON object")
    options = parser.parse_args()
    begin = time.perf_counter()
    seeds = range(options.seed, options.seed + -(-options.faults // PORTION))
    seen: Counter[str] = Counter()
    with ProcessPoolExecutor(options.processes) as pool:
        for counts in pool.map(portion, seeds, [min(PORTION, options.faults)] * len(seeds)):
            seen += counts
    if options.json:
        print(json.dumps(seen))
        return 0
    print(f"{seen['faults']:,} faults in {seen['campaigns']:,} campaigns, {seen['events']:,} events: nothing violated")
    for name, count in sorted(seen.items()):
        if " " in name:
            print(f"  {name:20}{count:12,}")
    print(f"{time.perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
