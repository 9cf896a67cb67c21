"""Links between the pages lead somewhere, and docs/README.md names every page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "evals", "benchmarks", "deploy", "tools")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


def broken(page: Path) -> list[str]:
    found = []
    for link in LINK.findall(without_code(page.read_text())):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if link.startswith(("http://", "https://")):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `thing`, two\n[a](#one-thing-two) [b](#three) [c](gone.md) [d](https://example.org)\n")
    assert broken(page) == ["#three", "gone.md"]


def named_by(index: Path) -> set[Path]:
    return {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text())}


def test_every_page_is_in_an_index() -> None:
    """Agents' pages have an index of their own."""
    indexes = [ROOT / "docs" / "README.md", ROOT / "docs" / "how-to" / "agents" / "README.md"]
    pages = set((ROOT / "docs").rglob("*.md")) - {indexes[0]}
    assert pages == {page for page in pages if any(page in named_by(index) for index in indexes)}


def test_decisions_are_numbered_once_and_in_a_row() -> None:
    numbers = sorted(int(page.name[:4]) for page in (ROOT / "docs" / "decisions").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))
