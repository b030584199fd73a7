"""The decoder (Qwen2 architecture, Hugging Face tensor names) and its file format.

RMSNorm, rotary positions (halves rotated), grouped-query attention with q/k/v bias, SwiGLU, tied embeddings.
"""

import json
import math
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from tasks import BOS, CONTEXT, EOS, PAD, VOCABULARY


@dataclass(frozen=True)
class Shape:
    hidden: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 416
    rope_theta: float = 10000.0
    eps: float = 1e-6


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


def rotary_tables(shape, positions):
    """Cosines and sines, [positions, head_dim], the second half of the channels as the first."""
    channel = torch.arange(0, shape.head_dim, 2, dtype=torch.float32)
    frequency = shape.rope_theta ** (-channel / shape.head_dim)
    angle = torch.outer(torch.arange(positions, dtype=torch.float32), frequency)
    angle = torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """x [batch, heads, tokens, head_dim]; cos and sin broadcast against it."""
    low, high = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat((-high, low), -1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.shape = s
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head_dim)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)

    def project(self, x, cos, sin):
        """Rotated queries, rotated keys and values of x, each [batch, heads, tokens, head_dim]."""
        batch, tokens, _ = x.shape
        q, k, v = (
            p(x).view(batch, tokens, -1, self.shape.head_dim).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def merge(self, y):
        return self.o_proj(y.transpose(1, 2).flatten(2))

    def forward(self, x, cos, sin):
        q, k, v = self.project(x, cos, sin)
        return self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))


class FeedForward(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden, s.ffn, bias=False)
        self.up_proj = nn.Linear(s.hidden, s.ffn, bias=False)
        self.down_proj = nn.Linear(s.ffn, s.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.self_attn = Attention(s)
        self.mlp = FeedForward(s)
        self.input_layernorm = RmsNorm(s.hidden, s.eps)
        self.post_attention_layernorm = RmsNorm(s.hidden, s.eps)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, s.hidden)
        self.layers = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = RmsNorm(s.hidden, s.eps)


class Decoder(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        cos, sin = rotary_tables(shape, CONTEXT)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                # What is added to the residual stream starts small: its variance must not grow with depth.
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * shape.layers) if last else 0.02)

    def logits(self, x):
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def states(self, ids):
        """The residual stream behind the last block, [batch, tokens, hidden], of ids [batch, tokens]."""
        tokens = ids.shape[1]
        x = self.model.embed_tokens(ids)
        for block in self.model.layers:
            x = block(x, self.cos[:tokens], self.sin[:tokens])
        return x

    def forward(self, ids):
        """Logits [batch, tokens, vocabulary] at every position."""
        return self.logits(self.states(ids))


def config(shape):
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCABULARY,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "torch_dtype": "bfloat16",
    }


def save(decoder, folder):
    """config.json and model.safetensors, the weights rounded to bfloat16."""
    from safetensors.torch import save_file

    os.makedirs(folder, exist_ok=True)
    weights = {name: w.detach().to(torch.bfloat16).cpu().contiguous() for name, w in decoder.state_dict().items()}
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config(decoder.shape), file, indent=2)
        file.write("\n")


def load(folder, device="cpu"):
    """The model of a folder that save wrote, computing in float32."""
    from safetensors.torch import load_file

    with open(os.path.join(folder, "config.json")) as file:
        c = json.load(file)
    shape = Shape(
        hidden=c["hidden_size"],
        layers=c["num_hidden_layers"],
        heads=c["num_attention_heads"],
        kv_heads=c["num_key_value_heads"],
        head_dim=c["head_dim"],
        ffn=c["intermediate_size"],
        rope_theta=c["rope_theta"],
        eps=c["rms_norm_eps"],
    )
    decoder = Decoder(shape)
    weights = load_file(os.path.join(folder, "model.safetensors"))
    decoder.load_state_dict({name: w.float() for name, w in weights.items()})
    return decoder.to(device).eval()
