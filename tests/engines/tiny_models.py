"""Tiny transformers models with random weights and a tokenizer of a few words, written to a folder in a second.

By hand, with a Python that has transformers and torch:  python tests/engines/tiny_models.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any

WORDS = ["[UNK]", "[PAD]", "yes", "no", "Yes", "No", "fix", "the", "test", "prove", "theorem", "hello", "?", "a", "b"]


def _tokenizer(folder: Path, template: str | None) -> int:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw: Any = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]", model_max_length=64)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return len(WORDS)


def make_sequence(folder: Path, labels: tuple[str, ...] = ("big", "small")) -> Path:
    """A BERT of two small layers that classifies."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=_tokenizer(folder, None), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, id2label=dict(enumerate(labels)), label2id={n: i for i, n in enumerate(labels)},
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def make_causal(folder: Path, template: str | None = "{% for m in messages %}{{ m['content'] }}{% endfor %} ?") -> Path:
    """A Llama of two small layers that writes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=_tokenizer(folder, template), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=512,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    root = Path(sys.argv[1])
    make_sequence(root / "sequence")
    make_sequence(root / "three", ("small", "middle", "big"))
    make_sequence(root / "one", ("small",))
    make_causal(root / "causal")
    make_causal(root / "plain", None)
