"""What a run leaves, and what is left of it when it was ended."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from switchyard.evals.folder import BadFolder, Folder, read_finished, read_run

from .runs import finished


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    trial = finished("big", "a/b", p=0.3)
    with Folder(tmp_path / "run") as folder:
        folder.begin({"suite": "s"})
        folder.keep(trial, {"requests": [1]})
    assert read_run(tmp_path / "run")["suite"] == "s"
    assert read_finished(tmp_path / "run") == [trial]
    raw = tmp_path / "run" / "raw" / "big" / "a%2Fb.1.json.gz"
    assert json.loads(gzip.decompress(raw.read_bytes())) == {"requests": [1]}


def test_half_a_character_of_a_model_is_kept(tmp_path: Path) -> None:
    """JSON may hold a lone surrogate; no UTF-8 can. A model that writes one must not end the run."""
    with Folder(tmp_path) as folder:
        folder.begin({})
        folder.keep(finished("big", "a", detail="answered \ud83d"), {"answer": "\ud83d"})
        folder.write("report.md", "answered \ud83d")
    assert [t.detail for t in read_finished(tmp_path)] == ["answered ?"]
    assert (tmp_path / "report.md").read_text("utf-8") == "answered ?"


@pytest.mark.parametrize("torn", [b"", b"{", b'{"arm": "big", "case"'])
def test_a_line_that_was_cut_off_is_taken_out(tmp_path: Path, torn: bytes) -> None:
    with Folder(tmp_path) as folder:
        folder.begin({})
        folder.keep(finished("big", "a"), {})
    with (tmp_path / "cases.jsonl").open("ab") as file:
        file.write(torn)
    with Folder(tmp_path) as folder:
        folder.resume()
        assert [t.case for t in folder.finished] == ["a"]
        folder.keep(finished("big", "b"), {})
    assert [t.case for t in read_finished(tmp_path)] == ["a", "b"]


def test_two_runs_at_once(tmp_path: Path) -> None:
    with Folder(tmp_path), pytest.raises(BadFolder, match="another eval"), Folder(tmp_path):
        pass
    with Folder(tmp_path):
        pass


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    with pytest.raises(BadFolder, match="holds no run"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(BadFolder, match="can't be read"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(BadFolder, match="another version"):
        read_run(tmp_path)
    (tmp_path / "cases.jsonl").write_text('{"arm": 1}\n')
    with pytest.raises(BadFolder, match=r"cases\.jsonl:1"):
        read_finished(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFolder, match="can't write"), Folder(tmp_path / "file" / "run"):
        pass
