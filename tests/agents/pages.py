"""Settings as docs/how-to/agents tells them to users: the tests run agents with what stands there, not with a copy."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs/how-to/agents"
ADDRESS = "http://127.0.0.1:4000"
KEY = "team-key"
"""Key that the pages show."""


class Page:
    """One page.

    Args:
        name: of the file.
        url: the gateway's, put where the page says `ADDRESS`.
    """

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._text = (FOLDER / name).read_text().replace(ADDRESS, url)

    def block(self, language: str) -> str:
        """The first code block of a language."""
        found = re.search(rf"^```{language}\n(.*?)^```$", self._text, re.DOTALL | re.MULTILINE)
        assert found is not None, f"{self._name} has no block of {language}"
        return found[1]

    @property
    def variables(self) -> dict[str, str]:
        """What the first block for a shell exports."""
        return dict(re.findall(r"^export (\w+)=(\S+)$", self.block("sh"), re.MULTILINE))


def probes(agent: str) -> set[tuple[str, str, str]]:
    """Method, path with query, and status of each of an agent's rows in the table of everything that was asked for."""
    lines = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(row[1], row[2].strip("`"), row[3]) for row in rows if row[0] == agent and row[1].isupper()}
