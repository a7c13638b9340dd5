"""Makes what tests/rows/golden.rs compares with: token ids as transformers gives them, a Qwen-style tokenizer, Parquet files.

    python make_golden.py SHAREGPT.json

transformers 5, tokenizers 0.22, pyarrow; examples/smollm2-135m/target must be there (`make smollm2`). SHAREGPT.json is
FastChat's dummy_conversation.json. Ids are kept as hashes: a line for each conversation.
"""

import hashlib
import json
import pathlib
import struct
import sys

import pyarrow
import pyarrow.parquet
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[3]
CONVERSATIONS = 500
ROLES = {"human": "user", "gpt": "assistant"}
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def hash_of(ids, mask=()):
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids) + bytes(mask)).hexdigest()[:16]


def make_qwen(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>", "<tool_call>")])
    folder = HERE / "qwen"
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
    return folder


def golden(folder, template, chats, name, with_mask=False):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = []
    for messages in chats:
        out = tokenizer.apply_chat_template(
            messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=with_mask
        )
        mask = out["assistant_masks"] if with_mask else ()
        lines.append(f"{len(out['input_ids'])} {hash_of(out['input_ids'], mask)}\n")
    (HERE / name).write_text("".join(lines))


def parquet_files():
    rows = [
        {"id": 1, "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes é🦊"}]},
        {"id": 2, "messages": None},
        {"id": 3, "messages": [{"role": "user", "content": "fox"}, {"role": "assistant", "content": "no\n"}]},
    ]
    table = pyarrow.Table.from_pylist(rows)
    for codec in ("snappy", "zstd", "gzip", "none"):
        pyarrow.parquet.write_table(table, HERE / f"chats-{codec}.parquet", compression=codec, row_group_size=2)


def main():
    rows = json.loads(pathlib.Path(sys.argv[1]).read_text())[:CONVERSATIONS]
    assert len(rows) == CONVERSATIONS
    chats = [[{"role": ROLES[turn["from"]], "content": turn["value"]} for turn in row["conversations"]] for row in rows]
    shapes = HERE.parent / "shapes"
    golden(ROOT / "examples/smollm2-135m/target", None, chats, "smollm2.txt")
    qwen = make_qwen(message["content"] for chat in chats for message in chat)
    golden(qwen, (shapes / "qwen3.jinja").read_text(), chats, "qwen3.txt")
    golden(qwen, (shapes / "generation.jinja").read_text(), chats, "generation.txt", with_mask=True)
    parquet_files()


main()
