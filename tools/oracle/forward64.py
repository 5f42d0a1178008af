# SPDX-License-Identifier: Apache-2.0
"""A second opinion: both architectures written out in float64 on the GGUF's own layout.

It shares no line with transformers and none of the rearranging in models.py, so that the two agree
only if both read the file as its makers meant it. It also says how far float32 is from the truth:
transformers cannot be asked in float64, since its norms and its softmax go down to float32.
"""

import math

import torch

from models import GEMMA3_LOCAL_ROPE_BASE


def rms_norm(x, weight, epsilon):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def rope(x, base, side_by_side):
    """x: [position][head][size]."""
    positions, _, size = x.shape
    inverse = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.arange(positions, dtype=torch.float64)[:, None, None] * inverse
    cosine, sine = torch.cos(angle), torch.sin(angle)
    out = torch.empty_like(x)
    a, b = ((slice(0, None, 2), slice(1, None, 2)) if side_by_side
            else (slice(0, size // 2), slice(size // 2, None)))
    out[..., a] = x[..., a] * cosine - x[..., b] * sine
    out[..., b] = x[..., b] * cosine + x[..., a] * sine
    return out


def attention(q, k, v, window):
    positions, heads, size = q.shape
    group = heads // k.shape[1]
    here = torch.arange(positions)[:, None]
    there = torch.arange(positions)[None, :]
    visible = there <= here
    if window:
        visible &= here - there < window
    out = torch.empty_like(q)
    for head in range(heads):
        score = q[:, head] @ k[:, head // group].T / math.sqrt(size)
        score = score.masked_fill(~visible, -math.inf).softmax(-1)
        out[:, head] = score @ v[:, head // group]
    return out


class Forward64:
    def __init__(self, model, window=None):
        self.model = model
        self.gemma = model.architecture == "gemma3"
        self.weights = {name: torch.from_numpy(value).double()
                        for name, value in model.weights.items()}
        self.window = window or (model.get("attention.sliding_window") if self.gemma else 0)

    def layer(self, x, layer):
        model, norm_names = self.model, f"blk.{layer}."
        weight = lambda name: self.weights[f"{norm_names}{name}.weight"]
        epsilon = model.get("attention.layer_norm_rms_epsilon")
        norm = lambda values, name: rms_norm(values, weight(name), epsilon)
        split = lambda values, key: values.reshape(len(x), model.get(key), -1)
        h = norm(x, "attn_norm")
        q = split(h @ weight("attn_q").T, "attention.head_count")
        k = split(h @ weight("attn_k").T, "attention.head_count_kv")
        v = split(h @ weight("attn_v").T, "attention.head_count_kv")
        local = not model.layer_is_global(layer)
        base = GEMMA3_LOCAL_ROPE_BASE if local else model.get("rope.freq_base")
        if self.gemma:
            q, k = norm(q, "attn_q_norm"), norm(k, "attn_k_norm")
        q, k = rope(q, base, not self.gemma), rope(k, base, not self.gemma)
        o = attention(q, k, v, self.window if local else 0).reshape(len(x), -1)
        o = o @ weight("attn_output").T
        x = x + (norm(o, "post_attention_norm") if self.gemma else o)
        h = norm(x, "ffn_norm")
        gate, up = h @ weight("ffn_gate").T, h @ weight("ffn_up").T
        if self.gemma:
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate ** 3)
            gate = 0.5 * gate * (1 + torch.tanh(inner))
        else:
            gate = gate / (1 + torch.exp(-gate))
        f = (gate * up) @ weight("ffn_down").T
        return x + (norm(f, "post_ffw_norm") if self.gemma else f)

    def hidden(self, ids):
        """The normed last layer's output: [position][width]."""
        x = self.weights["token_embd.weight"][torch.as_tensor(ids)]
        if self.gemma:
            x = x * math.sqrt(self.model.get("embedding_length"))
        for layer in range(self.model.get("block_count")):
            x = self.layer(x, layer)
        epsilon = self.model.get("attention.layer_norm_rms_epsilon")
        return rms_norm(x, self.weights["output_norm.weight"], epsilon)

    def logits(self, hidden):
        return hidden @ self.weights["token_embd.weight"].T
