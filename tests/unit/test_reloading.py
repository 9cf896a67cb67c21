"""Replacing the policy in force: what is read anew, and who is told of one that is bad."""

import os

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from switchyard.config.problem import PolicyError
from switchyard.config.reload import PolicyFile
from switchyard.config.secrets import Secrets
from switchyard.reloading import Reloader, make_ready

from .build import MINIMAL, policy_of

BAD = MINIMAL.replace("pools", "pols").encode()


class Reloading:
    """A reloader on a file, and what came of it."""

    def __init__(self, path, text: str = MINIMAL) -> None:
        self.path = path
        path.write_text(text)
        self.installed = []
        self.told = []
        self.counted = []
        ready = make_ready(policy_of(text), Secrets(), str(path))
        self.reloader = Reloader(ready, PolicyFile(path), self.installed.append, self.told.append, self.counted.append)


@pytest.fixture
def reloading(tmp_path):
    return Reloading(tmp_path / "p.yaml")


def test_a_bad_file_is_told_until_it_is_good(reloading, run):
    reloading.path.write_bytes(BAD)
    with pytest.raises(PolicyError):
        run(reloading.reloader.replace())
    assert "did you mean pools?" in reloading.reloader.problem
    assert str(reloading.path) in reloading.reloader.problem
    assert run(reloading.reloader.replace(MINIMAL.replace("model: s", "model: t").encode()))
    assert reloading.reloader.problem, "the file is still bad: a restart would fail"
    reloading.path.write_text(MINIMAL)
    run(reloading.reloader.replace())
    assert reloading.reloader.problem == ""
    assert reloading.counted == [False, True, True]


def test_a_bad_policy_that_was_sent_is_told_to_its_sender_only(reloading, run):
    with pytest.raises(PolicyError, match=r"sent policy:2:1: pols: unknown key"):
        run(reloading.reloader.replace(BAD))
    assert reloading.reloader.problem == ""
    assert (reloading.installed, reloading.told, reloading.counted) == ([], [], [False])


def test_one_that_another_worker_took_is_told_here(reloading, run):
    """What is good there may be bad here, where a variable or a file is missing, and nobody else would know."""
    with pytest.raises(PolicyError):
        run(reloading.reloader.follow(BAD))
    assert "sent policy:2:1" in reloading.reloader.problem
    run(reloading.reloader.follow(MINIMAL.encode()))
    assert reloading.reloader.problem == ""


def test_a_file_that_is_gone_is_told(reloading, run):
    os.unlink(reloading.path)
    with pytest.raises(OSError, match="No such file"):
        run(reloading.reloader.replace())
    assert "No such file" in reloading.reloader.problem


def test_a_tokenizer_that_changed_under_its_name_is_read_anew(tmp_path, run):
    def write(*words: str) -> None:
        tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if "a-b" in words else pre_tokenizers.Whitespace()
        tokenizer.save(str(path))

    path = tmp_path / "tokenizer.json"
    write("?")
    text = MINIMAL.replace("    model: s\n", f"    model: s\n    tokenizer: {path}\n")
    reloading = Reloading(tmp_path / "p.yaml", text)
    assert run(reloading.reloader.replace()) == []
    write("?", "a-b")
    assert run(reloading.reloader.replace()) == [f"the tokenizer {path} is new"]
    (ready,) = reloading.installed
    assert ready.tokenizers[str(path)](["a-b"]) == 1
    assert run(reloading.reloader.replace()) == []
    path.write_text("{}")
    with pytest.raises(PolicyError, match=r"pools\.small\.tokenizer: .* is no tokenizer\.json"):
        run(reloading.reloader.replace())
    assert len(reloading.installed) == 1
