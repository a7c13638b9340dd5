"""The same work as `queue.rs` (64 KiB written by one process, summed by the other), passed by Python's multiprocessing.Queue
and, where torch is installed, by torch.multiprocessing.Queue as a CPU tensor. Prints JSON lines."""

import json
import sys
import time

PAYLOAD = 64 << 10
SATURATED, PACED, PACE = 5000, 2000, 200e-6


def produce(queue, done, items, pace, kind):
    if kind == "torch":
        import torch

        source = torch.full((PAYLOAD,), 7, dtype=torch.uint8)
    else:
        source = bytes([7]) * PAYLOAD
    for _ in range(items):
        payload = source.clone() if kind == "torch" else bytearray(source)
        queue.put((time.monotonic_ns(), payload))
        if pace:
            time.sleep(pace)
    # A tensor's producer has to outlive its consumer's use of it.
    done.wait()


def measure(context, kind, items, pace):
    queue, done = context.Queue(8), context.Event()
    child = context.Process(target=produce, args=(queue, done, items, pace, kind))
    child.start()
    ages, started = [], None
    for _ in range(items):
        stamp, payload = queue.get()
        ages.append(time.monotonic_ns() - stamp)
        started = started or time.perf_counter()
        assert payload.sum() if kind == "torch" else sum(memoryview(payload).cast("Q")[::512])
        del payload
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
