#!/usr/bin/env bash
# The queue and what it is measured against, one JSON line a figure. The rivals build in a few minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-$PWD/target}"
cargo bench -q -p common --bench queue
CARGO_TARGET_DIR="$target/rivals" cargo run -q --release --manifest-path common/benches/rivals/Cargo.toml
python3 common/benches/python_queues.py
