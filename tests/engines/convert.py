"""Turn the demo's GGUF model into directories that vLLM loads: one as it is, one that splits over two ranks.

Runs inside the vLLM environment, which has the packages it imports: `python convert.py GGUF OUT_DIR OUT_TP_DIR`. Knows
Llama-shaped models with a byte-level BPE vocabulary, which is what SmolLM2 is, and nothing else.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Tensors = dict[str, np.ndarray[Any, Any]]

# float16 keeps the quantized values more exactly than bfloat16 at the same size; the engine computes in float32.
STORED_TYPE = "float16"
RANKS = 2

WHOLE_MODEL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # in llama.cpp's token types


def convert(source: Path, out: Path, out_tp: Path) -> None:
    """Write both model directories."""
    reader = gguf.GGUFReader(source)

    def field(key: str) -> Any:
        return reader.fields[key].contents()

    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    tensors = read_tensors(reader, heads, kv_heads)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": STORED_TYPE,
        "hidden_act": "silu",
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": field("llama.embedding_length") // heads,
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": field("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": field("llama.rope.freq_base"),
        "vocab_size": field("llama.vocab_size"),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
    }
    out.mkdir(parents=True)
    save_model(out, tensors, config)
    save_tokenizer(out, field)

    out_tp.mkdir(parents=True)
    save_model(out_tp, *pad_heads(tensors, config))
    for path in out.glob("*token*.json"):
        shutil.copy(path, out_tp)


def read_tensors(reader: gguf.GGUFReader, heads: int, kv_heads: int) -> Tensors:
    """All weights, dequantized, under the names and in the row order of the Hugging Face layout."""
    tensors: Tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.removesuffix(".weight")
        if kind in WHOLE_MODEL_NAMES:
            name = WHOLE_MODEL_NAMES[kind]
        else:
            _, layer, kind = kind.split(".")
            name = f"model.layers.{layer}.{LAYER_NAMES[kind]}"
        if kind == "attn_q":
            weight = undo_rotary_order(weight, heads)
        elif kind == "attn_k":
            weight = undo_rotary_order(weight, kv_heads)
        tensors[f"{name}.weight"] = np.ascontiguousarray(weight, dtype=STORED_TYPE)
    return tensors


def undo_rotary_order(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Put a projection's rows back: llama.cpp rotates neighbours (0, 1), Hugging Face halves (0, head_dim / 2)."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def pad_heads(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Add attention heads of zeros until the ranks divide them; what the model computes stays the same.

    The number of query heads per key-value head must not change, or the heads would be paired up differently.
    """
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    padded_kv_heads = -(-kv_heads // RANKS) * RANKS
    padded_heads = heads // kv_heads * padded_kv_heads
    query_rows = (padded_heads - heads) * config["head_dim"]
    kv_rows = (padded_kv_heads - kv_heads) * config["head_dim"]
    padding = {
        "q_proj": ((0, query_rows), (0, 0)),
        "k_proj": ((0, kv_rows), (0, 0)),
        "v_proj": ((0, kv_rows), (0, 0)),
        "o_proj": ((0, 0), (0, query_rows)),
    }
    padded = {
        name: np.pad(weight, padding[projection]) if (projection := name.split(".")[-2]) in padding else weight
        for name, weight in tensors.items()
    }
    return padded, {**config, "num_attention_heads": padded_heads, "num_key_value_heads": padded_kv_heads}


def save_model(out: Path, tensors: Tensors, config: dict[str, Any]) -> None:
    """Write weights and configuration."""
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2))
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    (out / "generation_config.json").write_text(json.dumps(tokens))


def save_tokenizer(out: Path, field: Any) -> None:
    """Write the vocabulary as a tokenizer with SmolLM2's splitting: every digit alone, then GPT-2's pattern."""
    tokens: list[str] = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = field("tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(out / "tokenizer.json"))
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {role: tokens[field(f"tokenizer.ggml.{name}_token_id")] for role, name in roles.items()}
    config["model_max_length"] = field("llama.context_length")
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    convert(*map(Path, sys.argv[1:]))
