"""What each example renders to, for each target, byte by byte.

After a change that is meant: UPDATE_GOLDEN=1 pytest tests/unit/cluster/render/test_golden.py, and read the difference.
"""

import os
from pathlib import Path

import pytest

from switchyard.cluster.picture import draw
from switchyard.cluster.plan import make_plan
from switchyard.cluster.render.bundle import MAKERS, render
from unit.cluster.make import EXAMPLES, ROOT, example
from unit.cluster.render.sources import RUN_RANK, example_source

GOLDEN = Path(__file__).parent / "golden"
CASES = [(name, target) for name in EXAMPLES for target in MAKERS]


def as_text(made: dict[str, str]) -> str:
    """All files in one, so that a change is read in one place; the script that comes along is not repeated."""
    parts = []
    for name, text in made.items():
        indented = "".join(f"    {line}".rstrip() + "\n" for line in RUN_RANK.splitlines())
        short = text.replace(RUN_RANK, "(run_rank.py)\n").replace(indented, "    (run_rank.py)\n")
        parts.append(f"=== {name}\n{short}")
    return "".join(parts)


def compare(path: Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    assert path.read_text("utf-8") == text


@pytest.mark.parametrize(("name", "target"), CASES)
def test_rendered(name, target):
    compare(GOLDEN / name / f"{target}.txt", as_text(render(target, example_source(name))))


@pytest.mark.parametrize("name", EXAMPLES)
def test_drawn(name):
    compare(GOLDEN / name / "plan.svg", draw(make_plan(example(name))))


def test_the_picture_in_the_docs():
    compare(ROOT / "docs" / "images" / "spark-8.svg", draw(make_plan(example("cluster"), "0.25")))


def test_nothing_is_left_from_earlier():
    wanted = {f"{name}/{target}.txt" for name, target in CASES} | {f"{name}/plan.svg" for name in EXAMPLES}
    assert {str(p.relative_to(GOLDEN)) for p in GOLDEN.rglob("*") if p.is_file()} == wanted
