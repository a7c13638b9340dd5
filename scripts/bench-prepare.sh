#!/usr/bin/env bash
# Preparation speed beside Hugging Face datasets + tokenizers; see common/data/benches/prepare.py.
# Uses python3 where it has the packages, else a virtual environment in .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
data=$1
if [ ! -e "$data" ]; then
    echo "bench-prepare: $data is not there: get GSM8K's train.jsonl and run make bench GSM8K=FILE" >&2
    exit 1
fi
python=python3
if ! "$python" -c 'import datasets, transformers' 2>/dev/null; then
    python=.venv/bin/python
    [ -x "$python" ] || python3 -m venv .venv
    "$python" -c 'import datasets, transformers' 2>/dev/null || "$python" -m pip install --quiet datasets transformers
fi
cargo build --quiet --release --package launcher
exec "$python" common/data/benches/prepare.py target/release/tandem examples/smollm2-135m/target "$data"
