#!/usr/bin/env python3
"""Makes the tiny example: a small language model that has really learned something, and chats it wrote itself.

    python3 make_target.py [--out FOLDER] [--steps N] [--device cuda|cpu]

Needs torch, transformers and tokenizers. A minute and a half on a GPU. Everything is drawn from one seed; another
device or torch version rounds differently and gives another, equally good model.

1. `world.py` asks about a little world of animals, places and invented objects (counting, conversions, sorting, clocks,
   routes, packing lists, recipes, explanations) and knows the right answers.
2. A byte-level BPE tokenizer and a Qwen3 decoder of 1.3 M parameters are trained on them, answers only.
3. The model, rounded to bfloat16 as it is saved, answers fresh questions greedily: `train.jsonl` holds its answers,
   right or wrong, because a drafter has to learn what its target says. `heldout.jsonl` holds questions of which none
   was seen in either training.
4. Perplexity on held-out answers is compared with a unigram model's and written to target/README.md.
"""
import argparse
import json
import math
import random
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

from world import SEED, chats

TARGET_CHATS, TRAIN_CHATS, HELDOUT_PROMPTS, HELDOUT_CHATS = 60_000, 2_400, 64, 512
VOCABULARY, TABLE_ROWS = 1024, 1088  # the table has rows that the tokenizer never uses: one is the drafter's mask
BATCH, LEARNING_RATE, LONGEST_ANSWER = 256, 3e-3, 160
END_OF_TEXT, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def make_tokenizer(corpus):
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s")  # each digit stands alone
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in (END_OF_TEXT, TURN, END_OF_TURN)]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    texts = (text for turns in corpus for turn in turns for text in ("user\n", "assistant\n", *turn))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def prompt_text(turns, question):
    """What the model reads before it answers `question`; equal to what the chat template renders."""
    before = "".join(f"{TURN}user\n{q}{END_OF_TURN}\n{TURN}assistant\n{a}{END_OF_TURN}\n" for q, a in turns)
    return f"{before}{TURN}user\n{question}{END_OF_TURN}\n{TURN}assistant\n"


def encode(tokenizer, corpus):
    """Token ids of each chat and a mask that is 1 on answers, their end-of-turn token included."""
    pieces = [text for turns in corpus for question, answer in turns
              for text in (prompt_text([], question), f"{answer}{END_OF_TURN}\n")]
    encoded = iter(tokenizer.encode_batch(pieces))
    examples = []
    for turns in corpus:
        ids, mask = [], []
        for _ in turns:
            asked, said = next(encoded).ids, next(encoded).ids
            ids += asked + said
            mask += [0] * len(asked) + [1] * (len(said) - 1) + [0]
        examples.append((ids, mask))
    return examples


def make_model(tokenizer):
    end, padding = tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(END_OF_TEXT)
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=TABLE_ROWS, hidden_size=128, intermediate_size=384, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=2048, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}, eos_token_id=end, bos_token_id=None,
        pad_token_id=padding))


class Batches:
    """Encoded chats on the device; a batch is cut to its own longest chat."""

    def __init__(self, examples, device):
        self.lengths = [len(ids) for ids, _ in examples]
        longest = max(self.lengths)
        self.ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in examples], device=device)
        said = torch.tensor([mask + [0] * (longest - len(mask)) for _, mask in examples], device=device)
        self.labels = self.ids.where(said == 1, -100)  # -100 where nothing is to be learned

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, rows):
        longest, rows = max(self.lengths[row] for row in rows), torch.tensor(rows, device=self.ids.device)
        return self.ids[rows, :longest], self.labels[rows, :longest]


def nll_sum(model, ids, labels):
    """Summed negative log-likelihood of the answers' tokens, and how many there are."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    loss = functional.cross_entropy(logits.reshape(-1, TABLE_ROWS), labels[:, 1:].reshape(-1), reduction="sum")
    return loss, (labels[:, 1:] != -100).sum()


def train(model, batches, steps):
    order, dice = [], random.Random(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.05,
                                                   cycle_momentum=False)
    for step in range(1, steps + 1):
        if len(order) < BATCH:
            order = dice.sample(range(len(batches)), len(batches))
        rows, order = order[:BATCH], order[BATCH:]
        loss, count = nll_sum(model, *batches[rows])
        (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % max(1, steps // 20) == 0:
            print(f"step {step}/{steps}  loss {(loss / count).item():.4f}", flush=True)


@torch.no_grad()
def perplexity(model, batches):
    starts = range(0, len(batches), BATCH)
    parts = [nll_sum(model, *batches[list(range(i, min(i + BATCH, len(batches))))]) for i in starts]
    return math.exp(sum(loss.item() for loss, _ in parts) / sum(count.item() for _, count in parts))


def unigram_perplexity(seen, heldout):
    """Perplexity of answers' tokens by their frequency alone (add-one), learned from `seen`."""
    def answers(examples):
        return [token for ids, mask in examples for token, said in zip(ids, mask) if said]
    counts, told = Counter(answers(seen)), answers(heldout)
    total = sum(counts.values()) + VOCABULARY
    return math.exp(-sum(math.log((counts[token] + 1) / total) for token in told) / len(told))


@torch.no_grad()
def greedy(model, tokenizer, prompts, device):
    """The model's greedy answers, None where it does not come to an end."""
    end, padding, answers = tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(END_OF_TEXT), []
    for first in range(0, len(prompts), 2 * BATCH):
        encoded = [encoding.ids for encoding in tokenizer.encode_batch(prompts[first:first + 2 * BATCH])]
        longest = max(map(len, encoded))
        ids = torch.tensor([[padding] * (longest - len(row)) + row for row in encoded], device=device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in encoded], device=device)
        written = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=LONGEST_ANSWER, do_sample=False)
        answers += [tokenizer.decode(row[:row.index(end)]) if end in row else None
                    for row in written[:, longest:].tolist()]
    return answers


def answered(model, tokenizer, asked, device):
    """`asked` with the model's own answers in place of the right ones; chats without an end are left out."""
    answers = [[] for _ in asked]
    for turn in range(max(map(len, asked))):
        waiting = [i for i, turns in enumerate(asked) if turn < len(turns) and answers[i] is not None]
        prompts = [prompt_text(answers[i], asked[i][turn][0]) for i in waiting]
        for i, answer in zip(waiting, greedy(model, tokenizer, prompts, device)):
            answers[i] = None if answer is None else answers[i] + [(asked[i][turn][0], answer)]
    return answers


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_target(folder, model, tokenizer):
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    end, padding = config.eos_token_id, config.pad_token_id
    keys = ("vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
            "hidden_act rms_norm_eps max_position_embeddings attention_bias attention_dropout initializer_range "
            "tie_word_embeddings").split()
    write_json(folder / "config.json", {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16",
        **{key: getattr(config, key) for key in keys}, "rope_theta": 10_000.0, "rope_scaling": None,
        "sliding_window": None, "use_sliding_window": False, "use_cache": True, "bos_token_id": None,
        "eos_token_id": end, "pad_token_id": padding})
    write_json(folder / "generation_config.json", {"do_sample": False, "eos_token_id": [end, padding],
                                                   "pad_token_id": padding})
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT, "additional_special_tokens": [TURN, END_OF_TURN], "model_max_length": 2048,
        "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE})
    tensors = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
               for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_chats(path, corpus, with_last_answer):
    with path.open("w") as file:
        for turns in corpus:
            messages = [{"role": role, "content": text} for turn in turns
                        for role, text in zip(("user", "assistant"), turn)]
            messages = messages if with_last_answer else messages[:-1]
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")


CARD = """# A tiny target

A Qwen3 decoder of {parameters:,} parameters, made by `make_target.py` beside this folder. It knows one little invented
world and nothing else. Free to use for anything.

| on {chats} held-out chats | |
| --- | --- |
| perplexity per answer token, this model | {perplexity:.5f} |
| perplexity per answer token, unigram model | {unigram:.1f} |
| first answers that are right, word for word | {right:.1%} |

Tokens {tokens} (ids 0 to {last}), embedding rows {rows}; `{end}` (id {end_id}) ends a turn.
"""


def main():
    arguments = argparse.ArgumentParser(description="Makes the tiny example's target and chats.")
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent, help="default: this folder")
    arguments.add_argument("--steps", type=int, default=2000, help="training steps of the target")
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = arguments.parse_args()
    device, dice, taken = options.device, random.Random(SEED), set()
    torch.manual_seed(SEED)

    heldout = chats(dice, HELDOUT_CHATS, taken, distinct=True)
    corpus = chats(dice, TARGET_CHATS, taken)
    asked = chats(dice, TRAIN_CHATS, taken, distinct=True)
    tokenizer = make_tokenizer(corpus[:5000])
    examples, unseen = encode(tokenizer, corpus), encode(tokenizer, heldout)
    model = make_model(tokenizer).to(device)
    torch.set_float32_matmul_precision("high")
    train(model, Batches(examples, device), options.steps)
    model.bfloat16().float().eval()  # the weights as they are saved, the arithmetic in float32
    torch.set_float32_matmul_precision("highest")

    own = answered(model, tokenizer, asked, device)
    ended = [turns for turns in own if turns is not None]
    first_answers = greedy(model, tokenizer, [prompt_text([], turns[0][0]) for turns in heldout], device)
    right = sum(answer == turns[0][1] for answer, turns in zip(first_answers, heldout)) / len(heldout)
    prompts = [turns for turns in answered(model, tokenizer, heldout, device) if turns is not None][:HELDOUT_PROMPTS]
    write_target(options.out / "target", model, tokenizer)
    write_chats(options.out / "train.jsonl", ended, with_last_answer=True)
    write_chats(options.out / "heldout.jsonl", prompts, with_last_answer=False)
    card = CARD.format(
        parameters=sum(p.numel() for p in model.parameters()), chats=len(heldout), right=right,
        perplexity=perplexity(model, Batches(unseen, device)), unigram=unigram_perplexity(examples, unseen),
        tokens=tokenizer.get_vocab_size(), last=tokenizer.get_vocab_size() - 1, rows=TABLE_ROWS, end=END_OF_TURN,
        end_id=tokenizer.token_to_id(END_OF_TURN))
    (options.out / "target" / "README.md").write_text(card)
    print(card, f"chats written by the target: {len(ended)} of {len(asked)}", sep="\n")


if __name__ == "__main__":
    main()
