#!/usr/bin/env bash
# Makes .libtorch/torch point at a libtorch 2.11.0: one installed with python3's torch, else a lean CPU copy
# fetched from PyPI into the user's cache (0.5 GB to fetch, 2 GB on disk). Says what it does; does nothing when done.
set -euo pipefail
cd "$(dirname "$0")/.."
version=2.11.0
[ -e .libtorch/torch/lib/libtorch_cpu.so ] && exit 0
mkdir -p .libtorch
installed=$(python3 - "$version" 2>/dev/null <<'PY' || true
import importlib.metadata, importlib.util, sys
if importlib.metadata.version("torch").split("+")[0] == sys.argv[1]:
    print(importlib.util.find_spec("torch").submodule_search_locations[0])
PY
)
if [ -n "$installed" ]; then
    echo "libtorch: using the torch $version that python3 has, $installed"
    ln -sfn "$installed" .libtorch/torch
    exit 0
fi
cache="${XDG_CACHE_HOME:-$HOME/.cache}/tandem/libtorch-$version"
if [ ! -e "$cache/torch/lib/libtorch_cpu.so" ]; then
    echo "libtorch: fetching torch $version from PyPI (0.5 GB) into $cache ..."
    work="$cache.partial"
    rm -rf "$work" && mkdir -p "$work/wheels"
    python3 -m pip download -q --no-deps --only-binary=:all: -d "$work/wheels" \
        "torch==$version" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
    echo "libtorch: unpacking ..."
    for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$work"; done
    rm -rf "$work/wheels"
    rm -rf "$cache" && mv "$work" "$cache"
fi
echo "libtorch: using $cache"
ln -sfn "$cache/torch" .libtorch/torch
