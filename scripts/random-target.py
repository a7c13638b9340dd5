#!/usr/bin/env python3
"""random-target.py FOLDER [--zeros]: writes FOLDER/model.safetensors with random bfloat16 weights of the shape that
FOLDER/config.json describes (Llama, Qwen2 or Qwen3, dense). For timings alone: nothing sensible comes out of such a model.
With --zeros the file is one hole: it takes neither time nor disk, and as much memory as any other."""
import json
import math
import sys
from pathlib import Path


def shapes(c):
    hidden, heads, inner = c["hidden_size"], c["num_attention_heads"], c["intermediate_size"]
    kv, dim = c.get("num_key_value_heads", heads), c.get("head_dim") or hidden // heads
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{norm}.weight", (hidden,)
        for name, rows in (("q", heads * dim), ("k", kv * dim), ("v", kv * dim)):
            yield f"{layer}self_attn.{name}_proj.weight", (rows, hidden)
            if c["model_type"] == "qwen2":
                yield f"{layer}self_attn.{name}_proj.bias", (rows,)
        yield f"{layer}self_attn.o_proj.weight", (hidden, heads * dim)
        if c["model_type"] == "qwen3":
            yield f"{layer}self_attn.q_norm.weight", (dim,)
            yield f"{layer}self_attn.k_norm.weight", (dim,)
        for name in ("gate", "up"):
            yield f"{layer}mlp.{name}_proj.weight", (inner, hidden)
        yield f"{layer}mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    if not c.get("tie_word_embeddings"):
        yield "lm_head.weight", (c["vocab_size"], hidden)


def main(folder, zeros=False):
    config = json.loads((folder / "config.json").read_text())
    header, end = {}, 0
    for name, shape in shapes(config):
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text = len(text).to_bytes(8, "little") + text
    path = folder / "model.safetensors"
    path.write_bytes(text)
    if zeros:
        with open(path, "r+b") as file:
            return file.truncate(len(text) + end)
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    drawn = {}  # layers repeat each other: drawing them all takes longer than writing them
    with open(path, "ab") as file:
        for name, entry in header.items():
            key = (entry["shape"], "norm" in name)
            if key not in drawn:
                weight = torch.ones(key[0]) if key[1] else torch.randn(key[0], device=device) * 0.02
                drawn[key] = weight.bfloat16().view(torch.int16).cpu().numpy()
            file.write(drawn[key].data)


main(Path(sys.argv[1]), "--zeros" in sys.argv)
