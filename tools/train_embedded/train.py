#!/usr/bin/env python3
"""Learn the weights of the embedded classifier from labelled prompts, and write them.

usage: train.py --data FILE [--out FILE] [--check]

The same data and the same versions of the libraries give the same file, byte for byte; --check learns anew, compares and
writes nothing. Half a minute on one core. What is learned and how is
`switchyard/calibration/recipe.py`; data and licences are README.md.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # sums in one order
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

try:
    from switchyard.calibration import recipe
except ImportError as error:
    sys.exit(f"{error.name} is missing: pip install -r tools/train_embedded/requirements.txt")

from switchyard.routing.classify.scorer import WEIGHTS, encode_weights  # noqa: E402

VERSION = "1"


def describe(data: bytes, rows: list[recipe.Row]) -> dict[str, str]:
    """The head of the file."""
    suites = {suite: sum(row.suite == suite for row in rows) for suite in sorted({row.suite for row in rows})}
    return {
        "what": "weights of Switchyard's embedded classifier: P(the small model's answer is as good as the big one's)",
        "version": VERSION,
        "made_by": "tools/train_embedded/train.py with "
        + ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "scikit-learn")),
        "data": f"{', '.join(f'{n} prompts of {suite}' for suite, n in suites.items())}; without {', '.join(recipe.BROKEN)}",
        "data_sha256": hashlib.sha256(data).hexdigest(),
        "labels": "answers by Mixtral-8x7B-Instruct (small) and GPT-4-1106-preview (big), recorded by RouteLLM (Apache-2.0)",
        "questions": "MMLU (MIT), GSM8K (MIT); none of their text is in here, only numbers about words and pairs of words",
    }


def main() -> int:
    """Read, learn, write or compare."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="labelled prompts: see README.md")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="the weights (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="compare with the file that is there")
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        print(f"{arguments.data} isn't there: README.md says how to make it", file=sys.stderr)
        return 2
    began = time.perf_counter()
    try:
        every = recipe.read_rows(arguments.data)
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"{arguments.data} holds no labelled prompts ({error}): README.md says what they look like", file=sys.stderr)
        return 2
    rows = [row for row in every if row.subject not in recipe.BROKEN]
    groups = recipe.group_prompts([row.prompt for row in rows])
    made = encode_weights(recipe.fit(rows, groups, about=describe(arguments.data.read_bytes(), rows)))
    print(f"learned from {len(rows):,} of {len(every):,} prompts in {time.perf_counter() - began:.0f} s; {len(made):,} bytes")
    if not arguments.check:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_bytes(made)
        print(f"wrote {arguments.out}, sha256 {hashlib.sha256(made).hexdigest()}")
        return 0
    there = arguments.out.read_bytes() if arguments.out.is_file() else b""
    if there == made:
        print(f"{arguments.out} is the same, byte for byte")
        return 0
    before, after = there.split(b"\n"), made.split(b"\n")
    differing = [new.split(b":")[0].decode() for old, new in zip(before, after, strict=False) if old != new]
    print(f"{arguments.out} differs in {', '.join(differing) or 'its length'}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
