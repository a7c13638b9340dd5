"""Makes the golden models and numbers beside this file: tiny random targets and what transformers computes with them.

    python tests/golden/make_goldens.py                                     the tiny models, each whole
    python tests/golden/make_goldens.py --smollm2 examples/smollm2-135m/target    SmolLM2-135M's numbers alone

Made with torch 2.11.0 and transformers 5.24.0, float32, eager attention, on a CPU. Each folder gets expected.safetensors:

    input_ids [T], document_offsets [D+1]   packed documents (int64); each was run alone, positions from 0
    logits [N, V]                           of the last N tokens (N = T for the tiny models)
    layers [L, T, H]                        layer outputs: the residual stream, before the next layer's norm
    layer_ids [L]                           which layers (int64)
"""

import argparse
import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
VOCABULARY = 160
DOCUMENTS = [5, 1, 30, 12]
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=16384,
    bos_token_id=1,
    eos_token_id=2,
)
# Lengths that put boundaries of both rules between the frequencies of a 16- or 24-element head.
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=4096)
YARN_IN_FULL = dict(
    YARN, beta_fast=24.0, beta_slow=2.0, mscale=1.0, mscale_all_dim=0.5, truncate=False
)
# name: family, rotary embedding (base, scaling), config.json in the old style, shards, the rest
MODELS = {
    "llama-tied": ("llama", (10000.0, dict(rope_type="default")), False, False, dict(tie_word_embeddings=True)),
    "llama-untied-llama3": ("llama", (500000.0, LLAMA3), True, False, dict()),
    "qwen2-sharded-yarn": ("qwen2", (10000.0, YARN), True, True, dict()),
    "qwen2-tied-llama3": ("qwen2", (10000.0, LLAMA3), False, False, dict(tie_word_embeddings=True, num_key_value_heads=1)),
    "qwen3-sharded": ("qwen3", (1000000.0, dict(rope_type="default")), True, True, dict(head_dim=24)),
    "qwen3-tied-yarn": ("qwen3", (10000.0, YARN_IN_FULL), False, False, dict(head_dim=24, tie_word_embeddings=True)),
}
CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def randomise(model, seed):
    """Weights large enough that attention is sharp and a wrong rotary angle shows; exact in bfloat16, as stored."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1.0 + 0.25 * noise
        elif name.endswith("bias"):
            value = 0.5 * noise
        else:
            value = 0.15 * noise
        parameter.data.copy_(value.to(torch.bfloat16))


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def run(model, ids):
    """Logits [T, V] and every layer's output [layers, T, H]; hooks, as hidden_states[-1] lies behind the final norm."""
    outputs = []
    hook = lambda module, args, output: outputs.append(output[0] if isinstance(output, tuple) else output)
    hooks = [layer.register_forward_hook(hook) for layer in model.model.layers]
    logits = model(input_ids=ids[None], use_cache=False).logits[0]
    for handle in hooks:
        handle.remove()
    return logits, torch.stack([output.reshape(len(ids), -1) for output in outputs])


def old_style(path):
    """Turns transformers 5's rope_parameters into the keys of most published folders."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    path.write_text(json.dumps(config, indent=2) + "\n")


def make_tiny(name, seed):
    family, (theta, scaling), old, sharded, rest = MODELS[name]
    config_class, model_class = CLASSES[family]
    config = config_class(**{**SIZES, **rest}, rope_parameters={"rope_theta": theta, **scaling}, use_cache=False)
    model = model_class(config)
    randomise(model, seed)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="100KB" if sharded else "1GB")
    if old:
        old_style(folder / "config.json")
    # Loaded anew: the trip through bfloat16 has rounded the rotary frequencies of the model above.
    model = load(folder)
    ids = torch.randint(0, VOCABULARY, (sum(DOCUMENTS),), generator=torch.Generator().manual_seed(seed + 1))
    runs = [run(model, document) for document in ids.split(DOCUMENTS)]
    offsets = torch.tensor([0, *DOCUMENTS]).cumsum(0)
    write(folder, ids, offsets, torch.cat([logits for logits, _ in runs]), torch.cat([layers for _, layers in runs], 1))


def write(folder, ids, offsets, logits, layers, layer_ids=None):
    layer_ids = list(range(len(layers))) if layer_ids is None else layer_ids
    tensors = dict(input_ids=ids, document_offsets=offsets, logits=logits, layers=layers[layer_ids])
    tensors["layer_ids"] = torch.tensor(layer_ids)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "expected.safetensors")
    print(f"{folder.name}: {sum(file.stat().st_size for file in folder.iterdir()) // 1024} KiB")


def make_smollm2(path):
    """A prompt of the model's own format; the taps of the published rule, logits of the last two tokens."""
    from tokenizers import Tokenizer

    text = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\nThe sky is blue because"
    ids = torch.tensor(Tokenizer.from_file(str(path / "tokenizer.json")).encode(text, add_special_tokens=False).ids)
    logits, layers = run(load(path), ids)
    folder = HERE / "smollm2-135m"
    folder.mkdir(exist_ok=True)
    write(folder, ids, torch.tensor([0, len(ids)]), logits[-2:], layers, [1, 8, 14, 20, 27])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--smollm2", type=pathlib.Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.smollm2:
        make_smollm2(arguments.smollm2)
    else:
        for index, name in enumerate(MODELS):
            make_tiny(name, 10 * index)
