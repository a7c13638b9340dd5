#!/usr/bin/env python3
"""gpu-memory.py [RUN ...]: what real runs take of GPU memory, against what their workers said before (`common::footprint`).

In the unpacked bundle of `make gpu`, on GPUs 0 and 1. Models have weights of zero (a sparse file: memory does not depend on
values), rows are the tiny example's chats, several in a row, of random lengths. Memory is each process's as the driver counts it,
five times a second. Exit code 2 if a prediction is off by more than 10 %, if a worker's memory grows by more than 2 % after step 50,
or if a refusal does not come."""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HAS_GPU = shutil.which("nvidia-smi") is not None
SMALL = dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
             head_dim=64, vocab_size=49152, tie_word_embeddings=True, architectures=["LlamaForCausalLM"], model_type="llama")
LARGE = dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
             head_dim=128, vocab_size=151936, tie_word_embeddings=False, architectures=["Qwen3ForCausalLM"], model_type="qwen3")
COMMON = dict(rms_norm_eps=1e-6, rope_theta=1e6, hidden_act="silu", max_position_embeddings=40960, bos_token_id=None,
              eos_token_id=2, attention_bias=False)
TAPS = {"small": [1, 8, 14, 20, 27], "large": [1, 9, 17, 25, 33]}
CHECKED, GROWTH = 0.10, 0.02

# name: (size, chats of a row from and to, targets, drafters, steps, overrides)
RUNS = {
    "small": ("small", (1, 6), [0], [1], 320, dict(batch=10240, length=320, anchors=64, block=8, capacity=16)),
    "small, one GPU": ("small", (1, 8), [0], [0], 60, dict(batch=20480, length=512, anchors=128, block=16, capacity=4)),
    "small, many anchors": ("small", (1, 8), [0], [1], 80, dict(batch=4096, length=512, anchors=512, block=8, capacity=32)),
    "small, two pairs": ("small", (1, 6), [0, 1], [0, 1], 60,
                         dict(batch=10240, length=320, anchors=64, block=8, capacity=16, per_step=2)),
    "large": ("large", (4, 40), [0], [1], 8, dict(batch=8192, length=3072, anchors=512, block=16, capacity=8)),
    "large, one GPU": ("large", (4, 40), [0], [0], 8, dict(batch=6144, length=3072, anchors=256, block=16, capacity=4)),
    "large, short blocks": ("large", (4, 40), [0], [1], 8, dict(batch=12288, length=3072, anchors=256, block=8, capacity=16)),
}
# name: (as above, the share of its drafter's need that another process leaves free once that has started, the words that are due)
REFUSED = {
    "large, too many blocks": (("large", (1, 4), [0], [1], 1, dict(batch=12288, length=512, anchors=512, block=16, capacity=8)),
                               None, "has no room for drafter 0"),
    "small, a full GPU": (("small", (1, 6), [0], [1], 1, dict(batch=10240, length=320, anchors=64, block=8, capacity=16)),
                          0.955, "too little memory"),
}


def model(folder, config):
    """A Hugging Face folder with weights of zero."""
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "examples/tiny/target" / file, folder)
    (folder / "config.json").write_text(json.dumps(config))
    subprocess.run([sys.executable, ROOT / "scripts/random-target.py", folder, "--zeros"], check=True)


def chats(path, fewest, most):
    """Rows of several of the tiny example's chats each."""
    source = [json.loads(line)["messages"] for line in open(ROOT / "examples/tiny/train.jsonl")]
    drawn = random.Random(1)
    with open(path, "w") as file:
        for _ in range(3000):
            row = [turn for chat in drawn.choices(source, k=drawn.randint(fewest, most)) for turn in chat if turn["role"] != "system"]
            file.write(json.dumps({"messages": row}) + "\n")


class Driver(threading.Thread):
    """Gigabytes that each process has on GPUs."""

    def __init__(self):
        super().__init__(daemon=True)
        self.watched = None
        self.start()

    def run(self):
        query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits", "-lms", "200"]
        for line in subprocess.Popen(query, stdout=subprocess.PIPE, text=True).stdout:
            pid, used = line.split(",")
            if self.watched is not None and used.strip().isdigit():
                self.watched(int(pid), int(used) * 1.048576e-3)


class Run:
    def __init__(self, work, name, spec):
        size, (fewest, most), self.targets, self.drafters, self.steps, keys = spec
        self.name, self.folder = name, work / ("run " + name)
        data = work / f"{size}-{fewest}-{most}.jsonl"
        if not data.exists():
            chats(data, fewest, most)
        toml = self.folder.with_suffix(".toml")
        toml.write_text(f"""[run]
output_dir = "{self.folder}"
targets = {self.targets}
drafters = {self.drafters}
[model]
target_model_path = "{work / size}"
[drafter]
block_size = {keys["block"]}
target_layer_ids = {TAPS[size]}
[data]
train_data_path = "{data}"
max_length = {keys["length"]}
batch_tokens = {keys["batch"]}
cache_dir = "{work / "store"}"
max_dropped = 1.0
[training]
num_epochs = 1000
max_steps = {self.steps + 1000}
batches_per_step = {keys.get("per_step", 1)}
num_anchors = {keys["anchors"]}
save_interval = 0
snapshot_interval = 0
log_interval = 1
[queue]
capacity = {keys["capacity"]}
""")
        self.toml, self.peaks, self.early = toml, {}, {}

    def step(self):
        try:
            return sum(1 for _ in open(self.folder / "metrics.jsonl"))
        except FileNotFoundError:
            return 0

    def watch(self, pid, used):
        """Counts it for the worker of this run that has that number, if one has."""
        try:
            program, *arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            return
        if str(self.folder) not in arguments:
            return
        worker = Path(program).name.split("-")[0], int(arguments[arguments.index("--rank") + 1])
        self.peaks[worker] = max(used, self.peaks.get(worker, 0))
        if self.now <= 50:
            self.early[worker] = self.peaks[worker]

    def whole(self, driver, seconds=120, meanwhile=None):
        """Until its last step; the launcher's stderr, how long it took, and its exit code, None if it went well. `meanwhile` is
        done when the drafter has been started."""
        self.now, begun = 0, time.time()
        if HAS_GPU:
            driver.watched = self.watch
        with open(self.folder.with_suffix(".err"), "w+") as err:
            launcher = subprocess.Popen([ROOT / "bin/tandem", "run", self.toml], stdout=err, stderr=err)
            try:
                while launcher.poll() is None and self.now < self.steps and time.time() - begun < seconds:
                    time.sleep(0.05)
                    self.now = self.step()
                    if meanwhile and (self.folder / "logs/drafter-0.log").exists():
                        meanwhile = meanwhile()
                took, code = time.time() - begun, launcher.poll()
            finally:
                launcher.kill()  # saves nothing: a checkpoint of the large size takes longer than its run
                launcher.wait()
            err.seek(0)
            said = err.read()
        if HAS_GPU:
            driver.watched = None
        return said, took, code

    def needs(self, role, rank):
        log = (self.folder / f"logs/{role}-{rank}.log").read_text()
        found = re.search(r"needs ([\d.]+) GB on .*?: (.*?); ", log)
        return (float(found[1]), found[2]) if found else (0.0, "nothing")

    def report(self):
        """A row for each worker; whether all is as predicted."""
        good, rows = True, json.loads((self.folder / "plan.json").read_text())["heaviest"]
        print(f"-- {self.name}: heaviest batch of {len(rows)} rows, {sum(row['tokens'] for row in rows)} tokens, "
              f"{sum(row['anchors'] for row in rows)} of them may be anchors; tokens/anchors of the longest rows: "
              + ", ".join(f"{row['tokens']}/{row['anchors']}" for row in sorted(rows, key=lambda row: -row["tokens"])[:16]))
        workers = [("target", rank) for rank in range(len(self.targets))] + [("drafter", rank) for rank in range(len(self.drafters))]
        for worker in workers:
            (needs, parts), seen, early = self.needs(*worker), self.peaks.get(worker, 0), self.early.get(worker, 0)
            off, growth = (needs / seen - 1, seen / early - 1) if early else (0, 0)
            good &= abs(off) <= CHECKED and growth <= GROWTH and (bool(seen) or not HAS_GPU)
            print(f"{self.name:22} {worker[0]:7} {worker[1]}  said {needs:7.2f} GB  took {seen:7.2f} GB  {off:+7.1%}  "
                  f"by step 50 {early:7.2f} GB, by step {self.now} {seen:7.2f} GB  ({parts})", flush=True)
        return good


class Hog:
    """A process that takes a GPU's memory when told to, but for some."""

    def __init__(self, gpu):
        code = f"""import sys, torch
torch.zeros(1, device="cuda:{gpu}")
print("ready", flush=True)
left = float(sys.stdin.readline())
free, _ = torch.cuda.mem_get_info({gpu})
kept = torch.empty(int(free - left), dtype=torch.uint8, device="cuda:{gpu}")
sys.stdin.read()"""
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()

    def take_all_but(self, gigabytes):
        self.process.stdin.write(f"{gigabytes * 1e9}\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def in_use(gpu):
    query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader", "-i", str(gpu)]
    return bool(subprocess.run(query, capture_output=True, text=True).stdout.strip())


def refused(work, name, driver, needs_of):
    spec, share, words = REFUSED[name]
    run, hog = Run(work, name, spec), None
    if share and in_use(1):
        print(f"{name:22} left out: others use GPU 1")
        return True
    if share:
        hog = Hog(1)
    said, took, code = run.whole(driver, 60, hog and (lambda: hog.take_all_but(share * needs_of["small"])))
    if hog:
        hog.end()
    good = code == 1 and words in said
    last = [line for line in said.splitlines() if words in line or line.startswith("hint")]
    print(f"{name:22} refused with code {code} after {took:.1f} s{'' if good else '  FAILED'}", *last[-2:], sep="\n    ", flush=True)
    if not good:
        print(said[-3000:])
    return good


def main(wanted):
    work = Path(tempfile.mkdtemp())
    driver = Driver() if HAS_GPU else None
    good, needs_of = True, {}
    try:
        for size, config in (("small", SMALL), ("large", LARGE)):
            model(work / size, {**config, **COMMON})
        for name in wanted or RUNS:
            if name not in RUNS:
                continue
            run = Run(work, name, RUNS[name])
            said, took, code = run.whole(driver)
            if code is not None or run.now < run.steps:
                print(f"{name}: ended with {code} at step {run.now} after {took:.0f} s\n{said[-4000:]}", flush=True)
                good = False
                continue
            print(f"-- {name}: {run.now} steps in {took:.0f} s")
            good &= run.report()
            needs_of[name] = run.needs("drafter", 0)[0]
        for name in wanted or REFUSED:
            if HAS_GPU and name in REFUSED and (not REFUSED[name][1] or "small" in needs_of):
                good &= refused(work, name, driver, needs_of)
    finally:
        shutil.rmtree(work)
    return 0 if good else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
