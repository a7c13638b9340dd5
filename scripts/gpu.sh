#!/usr/bin/env bash
# gpu.sh: in the unpacked bundle of `make gpu`: every check and bench on GPUs 0 and 1 (GPU_CHECKS_DEVICES=1: on GPU 0 alone), then
# one table. Exit code 2 if a check failed.
set -o pipefail
cd "$(dirname "$0")/.."
LD_LIBRARY_PATH=$(python3 -c 'import glob, os, torch
site = os.path.dirname(os.path.dirname(torch.__file__))
libs = glob.glob(site + "/nvidia/*/lib") + glob.glob(site + "/nvidia/*/*/lib")
print(":".join([os.path.join(site, "torch", "lib"), *libs]))'):${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH
lines=$(mktemp) runs=$(mktemp -d)
trap 'rm -rf "$lines" "$runs"' EXIT
drafter=1; [ "${GPU_CHECKS_DEVICES:-2}" = 1 ] && drafter=0
check() { echo "== $*" >&2; timeout 600 "bin/$@" | tee -a "$lines" >&2 || failed "$*" $?; }
failed() { printf '{"name": "%s ended with %s", "ok": false}\n' "$1" "$2" >> "$lines"; } # NAME CODE
pair() { # NAME CONFIG override...: a whole run; its speed as the last steps had it
    echo "== $1" >&2
    timeout 600 bin/tandem run "$2" run.device=cuda run.targets=[0] run.drafters=[$drafter] run.output_dir="$runs/$1" \
        data.cache_dir="$runs/store" training.save_interval=0 "${@:3}" >&2
    python3 - "$1" $? "$runs/$1/metrics.jsonl" >> "$lines" <<'PY'
import json, os, statistics, sys
name, code, path = sys.argv[1:]
speeds = [json.loads(line)["tokens_per_s"] for line in open(path)] if os.path.exists(path) else []
speed = statistics.median(speeds[len(speeds) // 2:]) if speeds else 0
print(json.dumps({"name": f"pair {name}, end to end", "value": speed, "unit": "tokens/s", "ok": code == "0"}))
PY
}
check gpu_checks
check gpu_sum
check capture_bench smollm2-135m
check capture_bench qwen3-8b
check drafter_bench smollm2-135m device=cuda
check drafter_bench qwen3-8b device=cuda
pair tiny examples/tiny/train.toml run.verify_payload=true
python3 scripts/random-target.py examples/smollm2-135m/target
pair smollm2-135m examples/smollm2-135m/train.toml model.torch_dtype=bfloat16 data.batch_tokens=10240 data.max_length=320 \
    data.bucket_bounds=[320] training.num_epochs=3000 training.max_steps=600 evaluation.eval_data_path=
if [ $drafter = 1 ]; then # two pairs, each sharing a GPU, against one: the same global batches
    same=(model.torch_dtype=bfloat16 training.max_steps=50 training.batches_per_step=2 queue.policy=strict evaluation.eval_data_path=)
    pair one-drafter examples/tiny/train.toml "${same[@]}"
    drafter=0,1
    pair two-drafters examples/tiny/train.toml "${same[@]}" "run.targets=[0,1]"
    python3 scripts/same-weights.py "$runs/one-drafter" "$runs/two-drafters" | tee -a "$lines" >&2 || failed same-weights.py $?
fi
python3 - "$lines" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
for row in rows:
    mark = {True: "", False: "FAILED"}[row.get("ok", True)]
    value = row.get("value", row.get("error", ""))
    print(f"{row['name'][:86]:86} {value if isinstance(value, str) else format(value, ',.4g'):>12} {row.get('unit', ''):9} {mark}")
sys.exit(2 if any(not row.get("ok", True) for row in rows) else 0)
PY
