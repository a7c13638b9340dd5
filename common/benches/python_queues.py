"""The same work as `queue.rs` (64 KiB written by one process, every byte of it read by the other, as many items, the same
warm-up and pace, each side on a core of its own), passed by Python's multiprocessing.Queue and, where torch is installed,
by torch.multiprocessing.Queue as a CPU tensor. Prints JSON lines."""

import json
import os
import sys
import time

PAYLOAD = 64 << 10
SATURATED, PACED, PACE = 20_000, 3_000, 200e-6


def warm_up(items):
    return items // 10


def pin(core):
    try:
        os.sched_setaffinity(0, {core})
    except OSError:
        pass  # There is no such core: both sides share one.


def produce(queue, done, items, pace, kind):
    pin(1)
    if kind == "torch":
        import torch

        source = torch.full((PAYLOAD,), 7, dtype=torch.uint8)
    else:
        source = bytes([7]) * PAYLOAD
    for _ in range(warm_up(items) + items):
        payload = source.clone() if kind == "torch" else bytearray(source)
        queue.put((time.monotonic_ns(), payload))
        if pace:
            time.sleep(pace)
    # A tensor's producer has to outlive its consumer's use of it.
    done.wait()


def measure(context, kind, items, pace):
    if kind == "torch":
        import torch
    queue, done = context.Queue(8), context.Event()
    child = context.Process(target=produce, args=(queue, done, items, pace, kind))
    child.start()
    pin(0)

    def take():
        stamp, payload = queue.get()
        age = time.monotonic_ns() - stamp
        # The fastest way that each has to look at every byte.
        assert payload.view(torch.int64).sum() if kind == "torch" else payload.count(0) == 0
        return age

    for _ in range(warm_up(items)):
        take()
    started = time.perf_counter()
    ages = [take() for _ in range(items)]
    seconds = time.perf_counter() - started
    done.set()
    child.join()
    return seconds, sorted(ages)


def report(name, context, kind):
    def line(what, value, unit):
        print(json.dumps({"name": f"{name}/{what}/64KiB", "value": round(value, 1), "unit": unit}), flush=True)

    seconds, _ = measure(context, kind, SATURATED, 0)
    line("items_per_s", SATURATED / seconds, "items/s")
    _, ages = measure(context, kind, PACED, PACE)
    line("publish_to_pop_p50", ages[len(ages) // 2] / 1000, "us")
    line("publish_to_pop_p99", ages[int(0.99 * (len(ages) - 1))] / 1000, "us")


if __name__ == "__main__":
    import multiprocessing

    report("multiprocessing", multiprocessing.get_context("fork"), "bytes")
    try:
        import torch.multiprocessing
    except ImportError:
        print("torch is not installed: torch.multiprocessing is left out", file=sys.stderr)
    else:
        torch.set_num_threads(1)
        report("torch.multiprocessing", torch.multiprocessing.get_context("fork"), "torch")
