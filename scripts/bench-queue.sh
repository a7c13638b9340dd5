#!/usr/bin/env bash
# bench-queue.sh [ROUNDS]: the queue and what it is measured against, in turn, ROUNDS times (5). One JSON line a figure: the
# median of the rounds as its value, beside the lowest and the highest. Wants a machine that is idle but for this; the rivals
# build in a few minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds="${1:-5}"
target="${CARGO_TARGET_DIR:-$PWD/target}"
cargo bench -q -p common --bench queue --no-run
CARGO_TARGET_DIR="$target/rivals" cargo build -q --release --manifest-path common/benches/rivals/Cargo.toml

medians='
import json, statistics, sys

figures = {}
for figure in map(json.loads, sys.stdin):
    figures.setdefault((figure["name"], figure["unit"]), []).append(figure["value"])
for (name, unit), values in figures.items():
    median = round(statistics.median(values), 1)
    print(json.dumps({"name": name, "value": median, "unit": unit, "lowest": min(values), "highest": max(values)}))'

for round in $(seq "$rounds"); do
    echo "round $round of $rounds, load $(cut -d ' ' -f 1-3 /proc/loadavg)" >&2
    cargo bench -q -p common --bench queue
    cargo bench -q -p common --bench profile
    timeout 120 "$target/rivals/release/rivals" ||
        { echo "bench-queue: a rival did not come to its end in 120 s: pollers starve on a busy machine" >&2; exit 1; }
    python3 common/benches/python_queues.py
done | python3 -c "$medians"
