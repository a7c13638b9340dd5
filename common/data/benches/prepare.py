"""Preparation speed beside Hugging Face datasets + tokenizers, on the same rows with the same number of processes.

    python prepare.py TANDEM TARGET GSM8K_TRAIN.jsonl [ROWS]

TANDEM is the release build, TARGET a model folder with tokenizer and chat template. GSM8K's questions and answers are
repeated to ROWS (100,000); both sides read that file, render the model's template and write token ids with a loss mask
to disk. Prints one JSON line. Needs the packages datasets and transformers.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import datasets  # noqa: E402
import transformers  # noqa: E402


def repeated(source, rows, path):
    lines = source.read_text().splitlines()
    with path.open("w") as file:
        file.writelines(lines[index % len(lines)] + "\n" for index in range(rows))


def tandem(program, target, data, folder):
    config = folder / "prepare.toml"
    paths = {"run.output_dir": folder, "model.target_model_path": target, "data.train_data_path": data}
    paths["data.cache_dir"] = folder / "store"
    sections = {}
    for key, value in paths.items():
        section, name = key.split(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(str(value))}")
    config.write_text("\n".join(f"[{name}]\n" + "\n".join(keys) for name, keys in sections.items()) + "\n")
    start = time.perf_counter()
    done = subprocess.run([program, "prepare", config, "--json"], check=True, stdout=subprocess.PIPE)
    seconds = time.perf_counter() - start
    return json.loads(done.stdout)["tokens"], seconds


def hugging_face(target, data, folder, processes):
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)

    def encode(batch):
        pairs = zip(batch["question"], batch["answer"])
        chats = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in pairs]
        texts = tokenizer.apply_chat_template(chats, tokenize=False)
        out = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        masks = []
        for text, answer, offsets in zip(texts, batch["answer"], out["offset_mapping"]):
            start = text.rindex(answer)
            masks.append([int(start <= left) for left, _ in offsets])
        return {"input_ids": out["input_ids"], "loss_mask": masks}

    start = time.perf_counter()
    rows = datasets.load_dataset("json", data_files=str(data), split="train", cache_dir=str(folder / "hf"))
    rows = rows.map(encode, batched=True, num_proc=processes, remove_columns=rows.column_names)
    seconds = time.perf_counter() - start
    return sum(map(len, rows["input_ids"])), seconds


def main():
    program, target, source = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
    rows = int(sys.argv[4]) if len(sys.argv) > 4 else 100_000
    processes = len(os.sched_getaffinity(0))
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        data = folder / "rows.jsonl"
        repeated(source, rows, data)
        ours, our_seconds = tandem(program, target, data, folder)
        theirs, their_seconds = hugging_face(target, data, folder, processes)
    assert ours == theirs, f"{ours} tokens, Hugging Face {theirs}"
    result = {
        "bench": "prepare",
        "rows": rows,
        "tokens": ours,
        "processes": processes,
        "tandem_tokens_per_s": round(ours / our_seconds),
        "hugging_face_tokens_per_s": round(theirs / their_seconds),
        "times": round(their_seconds / our_seconds, 2),
    }
    print(json.dumps(result))


main()
