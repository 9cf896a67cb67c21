"""The process behind the `local` classifier: loads a transformers model and answers questions, one JSON line each.

  python -m switchyard.routing.classify.worker --model PATH --kind sequence|causal [--label NAME] --max-tokens N

It is a process of its own because a model's forward pass holds the interpreter for longer than any stream may stand
still, and since a model that breaks must not take the gateway along. Lines on standard input, answered in their order:

  {"id": 7, "text": "...", "by": 123.4}    `by` is when the asker gives up, on this machine's monotonic clock

Lines on standard output:

  {"ready": "what was loaded"}  or  {"failed": "why"}     once, first
  {"id": 7, "p": 0.83}  or  {"id": 7, "late": true}  or  {"id": 7, "error": "why"}

It ends when its input does, so it never outlives the gateway. Nothing is ever downloaded.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

Score = Callable[[str], float]

YES, NO = "yes", "no"


def main(argv: Sequence[str] | None = None) -> int:
    """Load, say so, and answer until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--kind", choices=("sequence", "causal"), required=True)
    parser.add_argument("--label", default="")
    parser.add_argument("--max-tokens", type=int, default=1024)
    given = parser.parse_args(argv)
    answers = _take_stdout()
    try:
        score, what = load(given.model, given.kind, given.label, given.max_tokens)
    except Exception as error:  # noqa: BLE001  # whatever a model's files bring about is told to the gateway
        _say(answers, {"failed": f"{type(error).__name__}: {error}"[:500]})
        return 1
    _say(answers, {"ready": what})
    for answer in serve(sys.stdin, score):
        _say(answers, answer)
    return 0


def serve(lines: Iterable[str], score: Score, clock: Callable[[], float] = time.monotonic) -> Iterator[dict[str, Any]]:
    """Answer questions; one whose asker has given up is not worth a forward pass."""
    for line in lines:
        question = json.loads(line)
        id_ = question["id"]
        if clock() > question["by"]:
            yield {"id": id_, "late": True}
            continue
        try:
            p = score(question["text"])
        except Exception as error:  # noqa: BLE001  # one bad text must not end the process
            yield {"id": id_, "error": f"{type(error).__name__}: {error}"[:300]}
            continue
        yield {"id": id_, "p": p} if math.isfinite(p) else {"id": id_, "error": "the model's answer is not a number"}


def _take_stdout() -> TextIO:
    """Keep the way to the gateway for answers: what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def load(path: str, kind: str, label: str, most_tokens: int) -> tuple[Score, str]:
    """A function that scores texts, and a line about the model.

    Raises:
        Exception: whatever transformers raises for files it can't use; ValueError for a label that isn't there.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch  # type: ignore[import-not-found,unused-ignore]  # an extra: only this process needs it
    import transformers  # type: ignore[import-not-found,unused-ignore]

    transformers.utils.logging.disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    make = transformers.AutoModelForSequenceClassification if kind == "sequence" else transformers.AutoModelForCausalLM
    model = make.from_pretrained(path, local_files_only=True).to(device).eval()
    if device == "cpu":
        model = model.float()  # half precision is many times slower on most CPUs
    score = _sequence(torch, tokenizer, model, label, most_tokens) if kind == "sequence" else _causal(torch, tokenizer, model)
    score("hello")  # the first pass compiles and allocates: better now than inside somebody's deadline
    return score, f"{type(model).__name__} on {device}"


def _sequence(torch: Any, tokenizer: Any, model: Any, label: str, most_tokens: int) -> Score:
    """P(label) of a sequence classifier; with a single output, its sigmoid."""
    index = find_label(model.config.id2label, label)
    most = min(most_tokens, tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", most_tokens))

    def score(text: str) -> float:
        with torch.inference_mode():
            inputs = tokenizer(text, truncation=True, max_length=most, return_tensors="pt").to(model.device)
            logits = model(**inputs).logits[0].float()
            shares = torch.sigmoid(logits) if len(logits) == 1 else torch.softmax(logits, -1)
            return float(shares[index])

    return score


def find_label(labels: dict[int, str], wanted: str) -> int:
    """The output that means "the small pool is good enough".

    Raises:
        ValueError: it isn't there, or none is named and there are more than two.
    """
    if wanted:
        for index, name in labels.items():
            if name.lower() == wanted.lower():
                return int(index)
        raise ValueError(f"the model has no label {wanted}; it has {', '.join(labels.values())}")
    if len(labels) > 2:
        raise ValueError(f"say which label means that the small pool is good enough: {', '.join(labels.values())}")
    return max(map(int, labels))  # the only one, or the positive one of two


def _causal(torch: Any, tokenizer: Any, model: Any) -> Score:
    """P(yes) against P(no) for the next token after the question."""
    yes, no = find_words(tokenizer)

    def score(text: str) -> float:
        if tokenizer.chat_template:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        with torch.inference_mode():
            inputs = tokenizer(text, return_tensors="pt", add_special_tokens=not tokenizer.chat_template).to(model.device)
            logits = model(**inputs).logits[0, -1].float()
            chances = torch.softmax(logits, -1)
            p_yes, p_no = float(chances[yes].sum()), float(chances[no].sum())
        return p_yes / (p_yes + p_no) if p_yes + p_no > 0 else math.nan

    return score


def find_words(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Ids of all tokens that are yes and no, whatever their case and leading space.

    Raises:
        ValueError: the vocabulary has no such token.
    """
    words: dict[str, list[int]] = {YES: [], NO: []}
    for id_ in tokenizer.get_vocab().values():
        word = tokenizer.decode([id_]).strip().lower()
        if word in words:
            words[word].append(id_)
    if not (words[YES] and words[NO]):
        raise ValueError("the vocabulary has no token for yes and one for no: this model can't judge with one token")
    return words[YES], words[NO]


if __name__ == "__main__":
    sys.exit(main())
