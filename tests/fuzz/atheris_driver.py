"""Coverage-guided fuzzing of the targets, where atheris is installed beside the gateway's own dependencies.

  python tests/fuzz/atheris_driver.py TARGET [--corpus FOLDER] [--known TEXT]... [libFuzzer options]

TARGET is one of sse, engine, headers, body, envelope, front; -max_total_time=60 ends it after a minute. An input that
fails is written to the current folder as crash-*; keep it, made short, in kept.py. A failure whose traceback has the
TEXT of --known is passed over, so that the search goes on behind it.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import atheris

sys.path[:1] = map(str, Path(__file__).parents[1:3])

with atheris.instrument_imports(include=["switchyard", "uvicorn.protocols"]):
    from fuzz.seeds import CHOICES, SEEDS
    from fuzz.targets import TARGETS


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in TARGETS:
        sys.exit(f"usage: atheris_driver.py {'|'.join(TARGETS)} [--corpus FOLDER] [-max_total_time=60 ...]")
    options = sys.argv[2:]
    folder = tempfile.mkdtemp(prefix=f"fuzz-{name}-")
    known: list[str] = []
    while options and options[0] in {"--corpus", "--known"}:
        if options[0] == "--corpus":
            folder = options[1]
        else:
            known.append(options[1])
        del options[:2]
    corpus = Path(folder)
    corpus.mkdir(parents=True, exist_ok=True)
    seeds, tokens = SEEDS[name]
    for number, seed in enumerate(seeds):
        for flags in range(0, 64, 5):
            (corpus / f"seed-{number}-{flags}").write_bytes(bytes([flags] * CHOICES[name]) + seed)
    words = corpus.with_name(corpus.name + ".dict")
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in token) + '"\n' for token in tokens))
    logging.disable(logging.WARNING)
    atheris.Setup(
        [sys.argv[0], f"-dict={words}", "-max_len=4096", "-timeout=20", *options, str(corpus)],
        passing_over(TARGETS[name], known),
    )
    atheris.Fuzz()


def passing_over(target: Callable[[bytes], None], known: list[str]) -> Callable[[bytes], None]:
    """The target, quiet about known failures."""
    if not known:
        return target

    def run(data: bytes) -> None:
        try:
            target(data)
        except Exception:
            trace = traceback.format_exc()
            if not any(text in trace for text in known):
                raise

    return run


main()
