#!/usr/bin/env python3
"""How far the last checkpoints of two runs lie apart, as a JSON line: same-weights.py RUN RUN

The norm of the difference of the float32 masters over the norm of the first run's; bfloat16 rounds to 2^-8.
"""
import json
import sys
from pathlib import Path

from safetensors.torch import load_file


def masters(run):
    last = sorted((Path(run) / "checkpoints").glob("step-*"))[-1]
    state = load_file(last / "state.safetensors")
    return {name: tensor.double() for name, tensor in state.items() if name.endswith(".master")}


one, two = masters(sys.argv[1]), masters(sys.argv[2])
assert one and one.keys() == two.keys(), "the two runs train different drafters"
norm = lambda tensors: sum(tensor.square().sum() for tensor in tensors) ** 0.5
apart = float(norm(one[name] - two[name] for name in one) / norm(one.values()))
print(json.dumps({"name": "two pairs joined by NCCL against one drafter on the same batches: weights apart by",
                  "value": apart, "unit": "of their norm", "ok": apart < 2 ** -8}))
