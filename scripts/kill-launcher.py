#!/usr/bin/env python3
"""Kills the launcher of a run at work with SIGKILL and says what became of the rest, as JSON lines: kill-launcher.py DRAFTER RUN

DRAFTER is the drafter's device, or `cpu` for a machine without GPUs; the target is on device 0.
"""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

SLACK = 64  # MiB


def used():
    """MiB in use on each GPU of ours, by whomever."""
    if sys.argv[1] == "cpu":
        return []
    ours = os.environ.get("CUDA_VISIBLE_DEVICES")
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", *(["-i", ours] if ours else [])]
    return [int(line) for line in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()]


def tandem(run, steps):
    devices = ["run.device=cpu"] if sys.argv[1] == "cpu" else ["run.device=cuda", "run.targets=[0]", f"run.drafters=[{sys.argv[1]}]"]
    command = ["bin/tandem", "run", "examples/tiny/train.toml", f"run.output_dir={run}", f"training.max_steps={steps}",
               "training.num_epochs=100000", "evaluation.eval_data_path=", *devices]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def is_running(pid):
    """A process, or a thread of it, that is not only waiting to be collected."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ")[1].split()
        return fields[0] not in "ZX" or int(fields[17]) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid):
    parents = {int(path.name): path for path in Path("/proc").glob("[0-9]*")}
    return [child for child, path in parents.items() if parent_of(path) == pid]


def parent_of(path):
    try:
        return int((path / "stat").read_text().rsplit(") ")[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def seconds_until(holds, limit=30.0):
    start = time.monotonic()
    while not holds() and time.monotonic() - start < limit:
        time.sleep(0.005)
    return time.monotonic() - start


def shared_memory(pid):
    return [name for name in os.listdir("/dev/shm") if f"-{pid:x}" in name and name.startswith("tandem-")]


def say(name, value, unit, ok, bar):
    print(json.dumps({"test": 14, "name": f"launcher killed: {name}", "value": value, "unit": unit, "bar": bar, "ok": ok}), flush=True)


def killed(run):
    """A run's launcher, killed at work; its workers, and the GPUs' memory before that."""
    launcher = tandem(run, 1_000_000)
    metrics = run / "metrics.jsonl"
    try:
        assert seconds_until(lambda: metrics.exists() and metrics.stat().st_size > 0, 120) < 120, "the run does not begin to train"
        workers = children(launcher.pid)
        assert len(workers) == 2, f"{len(workers)} children"
        at_work = used()
    finally:
        # Whatever was found, it is not left at work on the GPUs.
        launcher.kill()
    return launcher, workers, at_work


before, run = used(), Path(sys.argv[2])
launcher, workers, at_work = killed(run)
gone = seconds_until(lambda: not any(map(is_running, workers)))
launcher.wait()
say("its workers are gone after", gone, "s", gone <= 1, "<= 1")
if before:
    back = gone + seconds_until(lambda: all(now <= was + SLACK for now, was in zip(used(), before)))
    say(f"GPU memory ({sum(at_work) - sum(before)} MiB in all) is back after", back, "s", back <= 5, "<= 5")
left = shared_memory(launcher.pid)
say("names it leaves in /dev/shm", len(left), "", len(left) > 0, ">= 1")
code = tandem(run, 5).wait()
say("the next run's exit code", code, "", code == 0, "= 0")
second, *_ = killed(run.with_name(f"{run.name}-again"))
code = tandem(run, 5).wait()
second.wait()
say("the exit code of a run started at once", code, "", code == 0, "= 0")
left = shared_memory(launcher.pid)
say("of those names left by the next run", len(left), "", not left, "= 0")
