#!/usr/bin/env bash
# gpu-bundle.sh GSM8K_TRAIN.jsonl: target/gpu.tar.gz, all that scripts/gpu.sh needs on a machine that has GPUs, CUDA and PyTorch, but
# no compiler
set -euo pipefail
cd "$(dirname "$0")/.."
[ -e "$1" ] || { echo "gpu-bundle: $1 is not there: get GSM8K's train.jsonl and run make gpu GSM8K=FILE" >&2; exit 1; }
checks="gpu_checks gpu_sum capture_bench drafter_bench"
cargo build --release --workspace --bins $(printf -- '--example %s ' $checks)
folder=target/gpu
rm -rf $folder && mkdir -p $folder/bin $folder/scripts $folder/examples/smollm2-135m/target
for program in tandem tandem-queue target-worker drafter-worker; do strip -o $folder/bin/$program target/release/$program; done
for check in $checks; do strip -o $folder/bin/$check target/release/examples/$check; done
cp scripts/{bench-telemetry.sh,gpu.sh,gpu-memory.py,kill-launcher.py,qwen3-8b-size.py,random-target.py,run-figures.py,same-weights.py} $folder/scripts/
cp -r examples/tiny $folder/examples/
cp examples/smollm2-135m/*.{toml,jsonl} $folder/examples/smollm2-135m/
cp examples/qwen3-8b.toml $folder/examples/
cp "$1" $folder/examples/smollm2-135m/gsm8k.jsonl
cp examples/smollm2-135m/target/{config,tokenizer,tokenizer_config}.json $folder/examples/smollm2-135m/target/
tar -C target -czf target/gpu.tar.gz gpu
ls -l target/gpu.tar.gz
