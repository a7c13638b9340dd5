#!/usr/bin/env python3
"""What a run's files say of its speed and of what queue and transport cost it, as JSON lines.

    run-figures.py NAME RUN CODE     figures of the run in folder RUN that ended with CODE
    run-figures.py --ratio NAME LINES  of the run's speed over that of its drafter alone, both among LINES
"""
import json
import statistics
import sys
from collections import Counter
from pathlib import Path

WAITS = {"await", "wait_gate", "wait_order", "wait_group", "wait_share", "wait_slot", "wait_lock"}


def say(name, value, unit, ok=True, bar="", test=None):
    print(json.dumps({"test": test, "name": name, "value": value, "unit": unit, "bar": bar, "ok": ok}))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def last_half(rows):
    return rows[len(rows) // 2:]


def stages(run):
    """Nanoseconds of drafters' main threads in all, waiting, and of second threads and targets with slots, while training."""
    spent = Counter()
    samples = [row for row in lines(run / "telemetry.jsonl") if row["batches"]["trained"] > 0]
    for worker in (worker for sample in last_half(samples) for worker in sample["workers"]):
        for track, phases in worker["stages"].items():
            for phase, visits in phases.items():
                if worker["role"] == "drafter" and track == "main":
                    spent["main"] += visits["ns"]
                    spent["waiting"] += visits["ns"] if phase in WAITS else 0
                if track != "gpu" and (worker["role"], phase) in {("drafter", "copy"), ("target", "publish")}:
                    spent["moving"] += visits["ns"]
    return spent


def figures(name, run, code):
    speeds = [row["tokens_per_s"] for row in last_half(lines(run / "metrics.jsonl"))]
    test = 32 if name.startswith("tiny") else None
    say(f"pair {name}, end to end", statistics.median(speeds) if speeds else 0, "tokens/s", code == 0, "ends well", test)
    spent = stages(run)
    if spent["main"] and not test:
        held, moved = (100 * spent[part] / spent["main"] for part in ("waiting", "moving"))
        # A checksum is computed behind the step that the GPU is at: who asks for it waits for that.
        verified = "verify_payload = true" in (run / "config.toml").read_text()
        ok, bar = (True, "") if verified else (held < 2, "< 2")
        say(f"pair {name}, drafter waiting for batches", held, "% of its time", ok, bar, 31)
        say(f"pair {name}, slots copied out and handed over, beside its work or not", moved, "% of its time", True, "", 31)


def ratio(name, path):
    values = {row["name"]: row.get("value") for row in lines(Path(path)) if "name" in row}
    share = values[f"pair {name}, end to end"] / values[f"drafter alone on the batches of {name}"]
    say(f"pair {name}, over its drafter alone on the same batches", 100 * share, "%", share >= 0.95, ">= 95")


if sys.argv[1] == "--ratio":
    ratio(*sys.argv[2:])
else:
    figures(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
