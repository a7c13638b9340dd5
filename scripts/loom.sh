#!/usr/bin/env bash
# Interleavings of the queue's steps under loom, within the bounds on preemptions that common/tests/loom.rs states; then the same
# with a bug seeded into a copy of the code. A seeded bug that
# the model does not catch is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-$PWD/target}"

explore() {
    CARGO_TARGET_DIR="$target/loom" timeout 300 cargo test -q --release -p common --features loom --test loom "$@"
}

# The workspace's manifest and the crate `common` alone, in a folder of their own.
copy="$(mktemp -d)"
trap 'rm -rf "$copy"' EXIT

# seed NAME SCENE FILE OLD NEW: replaces a text in the copy and wants that scene to fail.
seed() {
    local name="$1" scene="$2" file="$copy/common/src/queue/ring/$3" old="$4" new="$5"
    rm -rf "$copy/common"
    mkdir "$copy/common"
    cp -r common/src common/tests common/Cargo.toml "$copy/common/"
    for folder in benches examples; do [ -d "common/$folder" ] && cp -r "common/$folder" "$copy/common/"; done
    sed 's/^members = .*/members = ["common"]/; /^exclude = /d' Cargo.toml > "$copy/Cargo.toml"
    cp Cargo.lock "$copy/"
    OLD="$old" NEW="$new" python3 -c '
import os, sys
path, old, new = sys.argv[1], os.environ["OLD"], os.environ["NEW"]
text = open(path).read()
assert text.count(old) == 1, f"{path}: {old!r} is there {text.count(old)} times"
open(path, "w").write(text.replace(old, new))' "$file"
    echo "seeded: $name"
    if (cd "$copy" && explore "$scene") > "$copy/output" 2>&1; then
        echo "NOT CAUGHT: $name" >&2
        exit 1
    fi
    if ! grep -E "^(thread .* panicked|test result: FAILED|error: test failed)" "$copy/output" > /dev/null; then
        cat "$copy/output" >&2
        exit 1
    fi
    grep -A 1 -E "^thread .* panicked" "$copy/output" | head -2 | sed 's/^/  caught: /'
}

echo "as it is:"
explore
seed "the lock is given back with Relaxed instead of Release" two_targets_never lock.rs \
    'compare_exchange_weak(seen, 0, Ordering::Release, Ordering::Relaxed)' \
    'compare_exchange_weak(seen, 0, Ordering::Relaxed, Ordering::Relaxed)'
echo "loom: every interleaving within the bounds passes, the seeded bug is caught"
