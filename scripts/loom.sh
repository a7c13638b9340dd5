#!/usr/bin/env bash
# Interleavings of the queue's steps: instruction by instruction under loom, within the bounds that common/tests/loom.rs
# states, and critical section by critical section (common/tests/orders.rs) without bounds. Then the same with a bug
# seeded into a copy of the code; one that is not caught is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-$PWD/target}"

# explore TARGET_DIR TEST...
explore() {
    CARGO_TARGET_DIR="$1" timeout 300 cargo test -q --release -p common --features loom "${@:2}"
}

# The workspace's manifest and the crate `common` alone, in a folder of their own.
copy="$(mktemp -d)"
trap 'rm -rf "$copy"' EXIT

# seed NAME TEST SCENE FILE OLD NEW: replaces a text in the copy and wants that scene of that test program to fail.
seed() {
    local name="$1" program="$2" scene="$3" file="$copy/common/src/queue/ring/$4" old="$5" new="$6"
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
    if (cd "$copy" && explore "$target/loom-seeded" --test "$program" "$scene") > "$copy/output" 2>&1; then
        echo "NOT CAUGHT: $name" >&2
        exit 1
    fi
    # It must be the scene that failed, not the build.
    if ! grep -qE "^test result: FAILED" "$copy/output"; then
        cat "$copy/output" >&2
        exit 1
    fi
    grep -A 1 -E "^thread .* panicked" "$copy/output" | sed -n '1,2s/^/  caught: /p'
}

echo "as it is:"
explore "$target/loom" --test loom --test orders
# Its products are for these sources alone: cargo would take a seeded copy's for those of the sources as they are.
rm -rf "$target/loom-seeded"
cp -a "$target/loom" "$target/loom-seeded"
seed "the lock is given back with Relaxed instead of Release" loom two_targets_never lock.rs \
    'compare_exchange_weak(seen, 0, Ordering::Release, Ordering::Relaxed)' \
    'compare_exchange_weak(seen, 0, Ordering::Relaxed, Ordering::Relaxed)'
seed "a step does not compare the slot's word with the one it was given" loom a_target_counted_as_dead steps.rs \
    'if self.ring.word(hold.slot) == hold.word { Ok(()) } else { Err(Lost) }' \
    '{ let _ = hold; Ok(()) }'
seed "a pop does not ask the gate" orders every_order steps.rs \
    'Gate::Closed { ready, needed } => Err(Some(Blocked::Gate { ready, needed })),' \
    'Gate::Closed { .. } => Ok(Gate::Open),'
echo "loom: every interleaving within the bounds passes, the three seeded bugs are caught"
