#!/usr/bin/env bash
# bench-telemetry.sh WITH WITHOUT PAIRS CONFIG [override ...]: what it costs to say where the time goes. WITH and WITHOUT are
# folders with the four programs, the second built with RUSTFLAGS="--cfg no_telemetry"; PAIRS times a run of each, in turn, each
# pair in the other order than the one before. Prints the median of the pairs' ratios of step time (a pair's: the median over
# lines of metrics.jsonl, batch by batch) with its confidence interval, and how many different curves of losses there were: one,
# where a machine computes the same twice.
set -euo pipefail
with=$1 without=$2 pairs=$3 config=$4
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
run() { # FOLDER NAME override...
    "$1/tandem" run "$config" run.output_dir="$runs/$2" data.cache_dir="$runs/store" queue.policy=strict training.save_interval=0 \
        training.log_interval=5 evaluation.eval_data_path= "${@:3}" > "$runs/$2.out" 2>&1 || { tail -n 20 "$runs/$2.out" >&2; return 1; }
}
for ((pair = 0; pair < pairs; pair++)); do
    order=(with without)
    ((pair % 2)) && order=(without with)
    for build in "${order[@]}"; do run "${!build}" "$build-$pair" "${@:5}"; done
    python3 - "$runs" $((pair + 1)) "$config" <<'PY'
import json, math, statistics, sys
runs, pairs, config = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def read(build, pair):
    return [json.loads(line) for line in open(f"{runs}/{build}-{pair}/metrics.jsonl")]

def step_ms(lines):  # of each line after the first quarter
    late = [(a, b) for a, b in zip(lines, lines[1:]) if a["step"] >= lines[-1]["step"] / 4]
    return [1000 * (b["tokens"] - a["tokens"]) / b["tokens_per_s"] / (b["step"] - a["step"]) for a, b in late]

both = [(read("with", pair), read("without", pair)) for pair in range(pairs)]
curves = {tuple(line["loss"] for line in lines) for pair in both for lines in pair}
times = [(step_ms(a), step_ms(b)) for a, b in both]
# Lines of the same steps are of the same batches.
ratio = lambda pair: statistics.median(a / b for a, b in zip(*pair))
ratios = sorted(map(ratio, times))
# The median lies between the k-th and the k-th last ratio unless fewer than k of the pairs fall on one side of it.
outside = lambda k: 2 * sum(math.comb(pairs, i) for i in range(k)) / 2**pairs
k = max([k for k in range(1, pairs // 2 + 1) if outside(k) <= 0.05], default=1)
print(json.dumps({
    "name": f"telemetry, {config}: step with it over step without", "value": round(statistics.median(ratios), 5), "pairs": pairs,
    "low": round(ratios[k - 1], 5), "high": round(ratios[-k], 5), "confidence": round(1 - outside(k), 4),
    "step_ms": [round(statistics.median(sum(side, [])), 4) for side in zip(*times)], "last_ratio": round(ratio(times[-1]), 5),
    "loss_curves": len(curves)}), flush=True)
PY
done
