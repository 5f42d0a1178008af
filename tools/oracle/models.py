# SPDX-License-Identifier: Apache-2.0
"""The two real models as transformers sees them, built from nothing but a GGUF.

transformers can load some GGUF files itself; we do not use that, because a mistake there would be
taken for the truth. Weights go through the `gguf` package's dequantisation to float32, the config
is written out here, and the places where a GGUF differs from a checkpoint are undone by hand:

  llama   the rows of attn_q and attn_k are stored so that a rotary pair lies side by side
          (2i, 2i+1); transformers turns (i, i + size/2).
  gemma3  norm weights are stored with the 1 already added; transformers adds it again.
          Which layers slide, and the rotary base of those, are in no metadata: they are the
          architecture's constants, 5 of 6 layers and 10000.

Every tensor of the file must be used and every parameter of the model must be set, else we stop.
"""

import hashlib
import os

import gguf
import numpy
import torch
import transformers

GEMMA3_LOCAL_ROPE_BASE = 10000.0
GEMMA3_LAYERS_PER_GLOBAL = 6

MODELS = {
    "smollm2-135m": {
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    "gemma-3-270m": {
        "file": "gemma-3-270m-q4_k_m.gguf",
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"},
}

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The two architectures call different norms by the same name.
LAYER_NORM_NAMES = {
    "llama": {"ffn_norm": "post_attention_layernorm"},
    "gemma3": {"post_attention_norm": "post_attention_layernorm",
               "ffn_norm": "pre_feedforward_layernorm",
               "post_ffw_norm": "post_feedforward_layernorm"},
}


class Model:
    """A GGUF read once: metadata, and weights as float32 arrays of shape [out][in]."""

    def __init__(self, name, folder):
        known = MODELS[name]
        self.name = name
        self.path = os.path.join(folder, known["file"])
        with open(self.path, "rb") as file:
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if self.sha256 != known["sha256"]:
            raise ValueError(f"{self.path}: sha256 {self.sha256}, wanted {known['sha256']}")
        self.bytes = os.path.getsize(self.path)
        reader = gguf.GGUFReader(self.path)
        self.metadata = {key: field.contents() for key, field in reader.fields.items()}
        self.architecture = self.metadata["general.architecture"]
        self.weights = {
            tensor.name: numpy.array(
                gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=numpy.float32)
            for tensor in reader.tensors}
        self.vocabulary_count = len(self.metadata["tokenizer.ggml.tokens"])
        self.end_id = self.metadata["tokenizer.ggml.eos_token_id"]

    def get(self, key, default=None):
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise KeyError(f"{self.path}: no {self.architecture}.{key}")
        return value

    def head_size(self):
        heads = self.get("attention.head_count")
        return self.get("attention.key_length", self.get("embedding_length") // heads)

    def layer_is_global(self, layer):
        return (self.architecture != "gemma3"
                or layer % GEMMA3_LAYERS_PER_GLOBAL == GEMMA3_LAYERS_PER_GLOBAL - 1)


def float32_exact(value):
    """A float32 of the metadata as the shortest decimal that is the same float32 (1e-5, 1e-6)."""
    return float(str(numpy.float32(value)))


def config_make(model):
    layers = model.get("block_count")
    common = dict(
        vocab_size=model.vocabulary_count,
        hidden_size=model.get("embedding_length"),
        intermediate_size=model.get("feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=model.get("attention.head_count"),
        num_key_value_heads=model.get("attention.head_count_kv"),
        head_dim=model.head_size(),
        max_position_embeddings=model.get("context_length"),
        rms_norm_eps=float32_exact(model.get("attention.layer_norm_rms_epsilon")),
        rope_theta=model.get("rope.freq_base"),
        rope_scaling=None,
        attention_bias=False,
        attention_dropout=0.0,
        tie_word_embeddings=True,
        bos_token_id=model.metadata["tokenizer.ggml.bos_token_id"],
        eos_token_id=model.end_id,
        pad_token_id=model.metadata["tokenizer.ggml.padding_token_id"],
    )
    if any(key.startswith(f"{model.architecture}.rope.scaling") for key in model.metadata):
        raise ValueError("rope scaling is not written here")
    if model.architecture == "llama":
        if model.get("rope.dimension_count") != model.head_size():
            raise ValueError("partial rotary embedding is not written here")
        return transformers.LlamaConfig(hidden_act="silu", mlp_bias=False, **common)
    if model.architecture == "gemma3":
        return transformers.Gemma3TextConfig(
            hidden_activation="gelu_pytorch_tanh",
            query_pre_attn_scalar=model.head_size(),
            sliding_window=model.get("attention.sliding_window"),
            layer_types=["full_attention" if model.layer_is_global(layer) else "sliding_attention"
                         for layer in range(layers)],
            rope_local_base_freq=GEMMA3_LOCAL_ROPE_BASE,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            use_bidirectional_attention=False,
            **common)
    raise ValueError(f"architecture {model.architecture} is not written here")


def rotary_rows_split(rows, heads):
    """Rows of one head from (pair 0 a, pair 0 b, pair 1 a, ...) to (all a, all b)."""
    count, width = rows.shape
    return rows.reshape(heads, count // heads // 2, 2, width).swapaxes(1, 2).reshape(count, width)


def parameter_make(model, name):
    """The name and value that transformers wants for one tensor of the file."""
    value = model.weights[name]
    if model.architecture == "gemma3" and "norm" in name:
        stored, value = value, value - numpy.float32(1)
        if not numpy.array_equal(value + numpy.float32(1), stored):
            raise ValueError(f"{name}: taking the 1 off and adding it again is not exact")
    if name == "token_embd.weight":
        return "model.embed_tokens.weight", value
    if name == "output_norm.weight":
        return "model.norm.weight", value
    _, layer, kind, _ = name.split(".")
    if model.architecture == "llama" and kind in ("attn_q", "attn_k"):
        heads = model.get("attention.head_count" if kind == "attn_q" else "attention.head_count_kv")
        value = rotary_rows_split(value, heads)
    names = LAYER_NAMES | LAYER_NORM_NAMES[model.architecture]
    return f"model.layers.{layer}.{names[kind]}.weight", value


def reference_make(model):
    """The reference library's model, float32, plain attention, in evaluation."""
    config = config_make(model)
    config._attn_implementation = "eager"
    kind = (transformers.LlamaForCausalLM if model.architecture == "llama"
            else transformers.Gemma3ForCausalLM)
    reference = kind(config).to(torch.float32).eval()
    parameters = dict(parameter_make(model, name) for name in model.weights)
    wanted = dict(reference.named_parameters())
    if set(wanted) != set(parameters):
        raise ValueError(f"tensors that do not match: {set(wanted) ^ set(parameters)}")
    with torch.no_grad():
        for name, value in parameters.items():
            if tuple(wanted[name].shape) != value.shape:
                raise ValueError(f"{name}: shape {value.shape}, wanted {tuple(wanted[name].shape)}")
            wanted[name].copy_(torch.from_numpy(value))
    if reference.lm_head.weight.data_ptr() != reference.model.embed_tokens.weight.data_ptr():
        raise ValueError("the output matrix is not tied to the embedding")
    return reference
