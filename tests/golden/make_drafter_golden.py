"""Makes `drafter/` beside this file: a tiny random drafter, and what a plain PyTorch drafter computes with its weights.

    python tests/golden/make_drafter_golden.py

The drafter here is written for reading, from Qwen3's own parts in transformers, with one mask over all queries and keys
built by loops. Made with torch 2.11.0 and transformers 5.24.0 in float64 on a CPU. expected.safetensors holds

    token_ids [T], loss_mask [T], document_offsets [D+1], anchors [N]      a packed batch and its blocks (int64)
    taps [T, K*H], embedding [V, H], head [V, H]                           the target's side
    hidden [N, B, H]                                                       final hidden states
    loss []                                                                weighted mean of the cross-entropy
    gradient.<name>                                                        of the loss, by parameter
"""

import json
import math
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, rotate_half

FOLDER = pathlib.Path(__file__).parent / "drafter"
DOCUMENTS = [9, 14]
ANCHORS = [0, 2, 6, 11, 13, 19, 21]
UNSUPERVISED = [0, 4, 9, 10, 15]
GAMMA = 4.0
CONFIG = dict(
    architectures=["DFlashDraftModel"],
    model_type="qwen3",
    dtype="bfloat16",
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    hidden_act="silu",
    rms_norm_eps=1e-6,
    attention_bias=False,
    rope_theta=10000,
    max_position_embeddings=128,
    vocab_size=40,
    layer_types=["sliding_attention", "full_attention"],
    sliding_window=5,
    num_target_layers=8,
    block_size=4,
    dflash_config=dict(block_size=4, mask_token_id=39, target_layer_ids=[1, 3, 5]),
    bos_token_id=None,
    eos_token_id=2,
)
BLOCK = CONFIG["block_size"]


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        self.q_norm = Qwen3RMSNorm(c.head_dim, c.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(c.head_dim, c.rms_norm_eps)
        self.c = c

    def forward(self, x, context, positions, visible):
        c, slots = self.c, x.shape[0]
        heads = lambda rows: rows.view(rows.shape[0], -1, c.head_dim)
        q = self.q_norm(heads(self.q_proj(x)))
        k = self.k_norm(torch.cat([heads(self.k_proj(context)), heads(self.k_proj(x))]))
        v = torch.cat([heads(self.v_proj(context)), heads(self.v_proj(x))])
        frequencies = 1.0 / c.rope_theta ** (torch.arange(0, c.head_dim, 2).double() / c.head_dim)
        angles = positions[:, None].double() * frequencies
        angles = torch.cat([angles, angles], -1)[:, None]
        turn = lambda y, a: y * a.cos() + rotate_half(y) * a.sin()
        q, k = turn(q, angles[-slots:]), turn(k, angles)
        out = torch.empty_like(q)
        for head in range(c.num_attention_heads):
            shared = head * c.num_key_value_heads // c.num_attention_heads
            scores = q[:, head] @ k[:, shared].T / math.sqrt(c.head_dim)
            out[:, head] = scores.masked_fill(~visible, -math.inf).softmax(-1) @ v[:, shared]
        return self.o_proj(out.flatten(1))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = Qwen3RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Qwen3RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = Qwen3MLP(c)

    def forward(self, x, context, positions, visible):
        x = x + self.self_attn(self.input_layernorm(x), context, positions, visible)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc = nn.Linear(len(CONFIG["dflash_config"]["target_layer_ids"]) * c.hidden_size, c.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = Qwen3RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, taps, x, positions, masks):
        context = self.hidden_norm(self.fc(taps))
        for layer, kind in zip(self.layers, CONFIG["layer_types"]):
            x = layer(x, context, positions, masks[kind])
        return self.norm(x)


def mask(kind, document, tokens):
    """Rows: slots of all blocks. Columns: context tokens, then slots of all blocks."""
    slots = len(ANCHORS) * BLOCK
    visible = torch.zeros(slots, tokens + slots, dtype=torch.bool)
    sliding, window = kind == "sliding_attention", CONFIG["sliding_window"]
    for row in range(slots):
        block, i = divmod(row, BLOCK)
        anchor = ANCHORS[block]
        for key in range(tokens):
            visible[row, key] = (
                key < anchor
                and document[key] == document[anchor]
                and (not sliding or anchor + i - key < window)
            )
        for key in range(slots):
            other, j = divmod(key, BLOCK)
            visible[row, tokens + key] = other == block and (not sliding or (j <= i and i - j < window))
    return visible


def main():
    config = Qwen3Config(**{key: CONFIG[key] for key in CONFIG if key not in ("architectures", "model_type", "dflash_config")})
    config.rope_theta = CONFIG["rope_theta"]
    generator = torch.Generator().manual_seed(20)
    random = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    drafter = Drafter(config).double()
    with torch.no_grad():
        for parameter in drafter.parameters():
            noise = random(*parameter.shape)
            # Values that bfloat16 holds exactly, so that the checkpoint's type loses nothing.
            parameter.copy_((1 + 0.3 * noise if parameter.dim() == 1 else 0.3 * noise).bfloat16())

    tokens, vocabulary, hidden_size = sum(DOCUMENTS), CONFIG["vocab_size"], CONFIG["hidden_size"]
    document = [d for d, length in enumerate(DOCUMENTS) for _ in range(length)]
    positions = [t for length in DOCUMENTS for t in range(length)]
    token_ids = torch.randint(0, 39, (tokens,), generator=generator)
    loss_mask = torch.tensor([int(t not in UNSUPERVISED) for t in range(tokens)])
    taps = random(tokens, drafter.fc.in_features).float().double()
    embedding, head = random(vocabulary, hidden_size).float().double(), random(vocabulary, hidden_size).float().double()

    slot_positions = torch.tensor(positions + [positions[a] + i for a in ANCHORS for i in range(BLOCK)])
    ids = torch.tensor([[int(token_ids[a])] + [CONFIG["dflash_config"]["mask_token_id"]] * (BLOCK - 1) for a in ANCHORS])
    masks = {kind: mask(kind, document, tokens) for kind in CONFIG["layer_types"]}
    hidden = drafter(taps, embedding[ids.flatten()], slot_positions, masks)

    numerator = denominator = 0.0
    for row, logits in enumerate(hidden @ head.T):
        block, i = divmod(row, BLOCK)
        place = ANCHORS[block] + i
        if i == 0 or place >= tokens or document[place] != document[ANCHORS[block]] or not loss_mask[place]:
            continue
        weight = math.exp(-(i - 1) / GAMMA)
        numerator = numerator - weight * logits.log_softmax(-1)[token_ids[place]]
        denominator += weight
    loss = numerator / denominator
    loss.backward()

    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    weights = {name: parameter.detach().bfloat16() for name, parameter in drafter.named_parameters()}
    save_file(weights, FOLDER / "model.safetensors", metadata={"format": "pt"})
    numbers = dict(taps=taps, embedding=embedding, head=head, hidden=hidden.view(len(ANCHORS), BLOCK, -1), loss=loss)
    numbers |= {f"gradient.{name}": parameter.grad for name, parameter in drafter.named_parameters()}
    expected = {name: number.detach().float().contiguous() for name, number in numbers.items()}
    offsets = torch.tensor([0, *torch.tensor(DOCUMENTS).cumsum(0).tolist()])
    expected |= dict(token_ids=token_ids, loss_mask=loss_mask, document_offsets=offsets, anchors=torch.tensor(ANCHORS))
    save_file(expected, FOLDER / "expected.safetensors")
    print(f"loss {loss.item():.6f}")


main()
