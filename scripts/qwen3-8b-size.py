#!/usr/bin/env python3
"""qwen3-8b-size.py FOLDER: a target of Qwen3-8B's shape with random weights and SmolLM2's tokenizer (FOLDER/target, 16 GB), and chats
longer than 3,072 tokens (FOLDER/chats.jsonl). For timings alone."""
import json
import shutil
import subprocess
import sys
from pathlib import Path

SMALL = Path("examples/smollm2-135m")
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000, "max_position_embeddings": 40960, "tie_word_embeddings": False, "attention_bias": False,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}

folder = Path(sys.argv[1])
target = folder / "target"
target.mkdir(parents=True, exist_ok=True)
(target / "config.json").write_text(json.dumps(CONFIG))
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(SMALL / "target" / name, target)
subprocess.run([sys.executable, "scripts/random-target.py", target], check=True)
rows = [json.loads(line) for line in (SMALL / "gsm8k.jsonl").read_text().splitlines()]
text = "\n".join(f"{row['question']} {row['answer']}" for row in rows)
with open(folder / "chats.jsonl", "w") as chats:
    for start in range(0, min(len(text) - 20_000, 128 * 16_000), 16_000):
        answer = text[start:start + 20_000]  # some 5,000 tokens: cut to 3,072
        print(json.dumps({"messages": [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": answer}]}), file=chats)
