"""One token as the proof that an engine works: what is asked for, and what an answer says."""

import pytest

from switchyard.pools.proof import proof_request, read_proof
from switchyard.pools.serves import NATIVE


@pytest.mark.parametrize(
    ("protocols", "path"),
    [
        (NATIVE, "/v1/chat/completions"),
        ({"messages", "completions"}, "/v1/completions"),
        ({"embeddings", "score"}, "/v1/embeddings"),
    ],
)
def test_the_cheapest_real_work_is_asked_for(protocols, path):
    found, body = proof_request(protocols, "m")
    assert (found, body["model"]) == (path, "m")
    assert body.get("max_tokens", 1) == 1


def test_where_nothing_can_be_asked_the_health_path_has_to_do():
    assert proof_request({"rerank", "score"}, "m") is None


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, "works"), (400, "works"), (404, "works"), (429, "unclear"), (503, "unclear"), (500, "fails"), (502, "fails")],
)
def test_what_an_answer_says(status, outcome):
    assert read_proof(status) == outcome
