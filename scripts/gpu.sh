#!/usr/bin/env bash
# gpu.sh [GROUP...]: in the unpacked bundle of `make gpu`: checks and benches on GPUs 0 and 1 (GPU_CHECKS_DEVICES=1: on GPU 0 alone),
# then one table; "test" is the number that docs/benchmarks.md lists them by. Exit code 2 if one of them failed.
#
#   checks   the arena between processes: speed, cost, deaths, refusals, leaks   sum     NCCL between two processes
#   bench    target's capture (GPU 0) and drafter's step (GPU 1), side by side   pair    whole runs of the small sizes
#            (the drafter's state, 13 GB, goes to /dev/shm if there is room)
#   nccl     two pairs joined by NCCL against one                                orphans the launcher is killed
#   large    whole runs at Qwen3-8B's size; only when asked for: it writes 16 GB, in /dev/shm where that has 80 free
set -o pipefail
cd "$(dirname "$0")/.."
LD_LIBRARY_PATH=$(python3 -c 'import glob, os, torch
site = os.path.dirname(os.path.dirname(torch.__file__))
libs = glob.glob(site + "/nvidia/*/lib") + glob.glob(site + "/nvidia/*/*/lib")
print(":".join([os.path.join(site, "torch", "lib"), *libs]))'):${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH
groups=${*:-checks sum bench pair nccl orphans}
room=$(df --output=avail -BG /dev/shm | tail -1 | tr -dc 0-9)
lines=$(mktemp) runs=$(TMPDIR=$([ "$room" -ge 80 ] && echo /dev/shm || echo /tmp) mktemp -d)
trap 'rm -rf "$lines" "$runs"' EXIT
drafter=1; [ "${GPU_CHECKS_DEVICES:-2}" = 1 ] && drafter=0
failed() { printf '{"name": "%s ended with %s", "ok": false}\n' "$1" "$2" >> "$lines"; } # NAME CODE
check() { echo "== $*" >&2; timeout 600 "bin/$@" | tee -a "$lines" >&2 || failed "$*" $?; }
run() { # NAME CONFIG override...: a whole run in $runs/NAME
    echo "== $1" >&2
    timeout 600 bin/tandem run "$2" run.device=cuda run.targets=[0] run.drafters=[$drafter] run.output_dir="$runs/$1" \
        data.cache_dir="$runs/store" training.save_interval=0 "${@:3}" >&2
}
pair() { # NAME CONFIG override...: a run, and its figures
    run "$@"; local code=$?
    python3 scripts/run-figures.py "$1" "$runs/$1" $code | tee -a "$lines" >&2 || failed "$1" $?
}
alone() { # NAME STEPS: the drafter of that run alone on the run's batches, and the pair's speed over its
    CUDA_VISIBLE_DEVICES=$(second) check drafter_bench "$runs/$1" device=cuda steps="$2"
    python3 scripts/run-figures.py --ratio "$1" "$lines" | tee -a "$lines" >&2 || failed "$1 over its drafter" $?
}
smollm2() { [ -e examples/smollm2-135m/target/model.safetensors ] || python3 scripts/random-target.py examples/smollm2-135m/target; }

group_checks() { check gpu_checks; }
group_sum() { check gpu_sum; }
group_bench() {
    local size
    (for size in smollm2-135m qwen3-8b; do check capture_bench $size; done) &
    (for size in smollm2-135m qwen3-8b; do CUDA_VISIBLE_DEVICES=$(second) check drafter_bench $size device=cuda; done) &
    wait
}
second() { # as this process counts devices, the drafter's
    [ -z "$CUDA_VISIBLE_DEVICES" ] && echo $drafter || cut -d, -f$((drafter + 1)) <<< "$CUDA_VISIBLE_DEVICES"
}
group_pair() {
    smollm2
    local gsm8k=(model.torch_dtype=bfloat16 data.train_data_path=examples/smollm2-135m/gsm8k.jsonl) device
    pair tiny examples/tiny/train.toml run.verify_payload=true training.max_steps=400 evaluation.num_prompts=8 evaluation.lossless_check=false
    pair tiny-on-cpus examples/tiny/train.toml run.device=cpu training.max_steps=20 evaluation.eval_data_path=
    pair gsm8k examples/smollm2-135m/gsm8k.toml "${gsm8k[@]}" training.max_steps=500
    alone gsm8k 500
    for arena in cuipc host; do
        pair gsm8k-$arena examples/smollm2-135m/gsm8k.toml "${gsm8k[@]}" run.arena=$arena run.verify_payload=true training.max_steps=120
    done
    device=$drafter drafter=0
    pair gsm8k-one-gpu examples/smollm2-135m/gsm8k.toml "${gsm8k[@]}" training.max_steps=150
    drafter=$device
}
group_nccl() { # two pairs, each sharing a GPU, against one: the same global batches
    [ $drafter = 1 ] || return 0
    local same=(model.torch_dtype=bfloat16 training.max_steps=50 training.batches_per_step=2 queue.policy=strict evaluation.eval_data_path=)
    pair one-drafter examples/tiny/train.toml "${same[@]}"
    drafter=0,1
    pair two-drafters examples/tiny/train.toml "${same[@]}" "run.targets=[0,1]"
    drafter=1
    python3 scripts/same-weights.py "$runs/one-drafter" "$runs/two-drafters" | tee -a "$lines" >&2 || failed same-weights.py $?
}
group_orphans() {
    echo "== the launcher is killed" >&2
    python3 scripts/kill-launcher.py $drafter "$runs/killed" | tee -a "$lines" >&2 || failed kill-launcher.py $?
}
group_large() {
    python3 scripts/qwen3-8b-size.py "$runs/large" || failed qwen3-8b-size.py $?
    local large=(model.target_model_path="$runs/large/target" data.train_data_path="$runs/large/chats.jsonl" training.batches_per_step=1
        training.log_interval=2 training.max_steps=20 evaluation.eval_data_path=) device=$drafter
    pair qwen3-8b examples/qwen3-8b.toml "${large[@]}"
    alone qwen3-8b 20
    rm -rf "$runs/qwen3-8b/checkpoints"
    drafter=0 # long enough that the target, up to 11 batches ahead, is at work in most of the last half
    pair qwen3-8b-one-gpu examples/qwen3-8b.toml "${large[@]}" training.max_steps=120
    drafter=$device
}
for group in $groups; do group_$group; echo "== $group done after $SECONDS s" >&2; done
python3 - "$lines" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
for row in sorted(rows, key=lambda row: row.get("test") or 99):
    mark = {True: "", False: "FAILED"}[row.get("ok", True)]
    value = row.get("value", row.get("error", ""))
    value = value if isinstance(value, str) else format(value, ",.4g")
    print(f"{row.get('test') or '':>4} {row['name'][:96]:96} {value:>10} {row.get('unit', ''):13} {row.get('bar', ''):>8} {mark}")
failed = sum(not row.get("ok", True) for row in rows)
print(f"{len(rows)} figures, {failed} failed")
sys.exit(2 if failed else 0)
PY
