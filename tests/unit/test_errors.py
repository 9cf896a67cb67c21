"""The errors that the gateway itself can answer with: complete, and each with what both families of clients need."""

import pytest

from switchyard import errors
from switchyard.errors import LEAVES, GatewayError

OPENAI_TYPES = {"invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error"}
ANTHROPIC_TYPES = {
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large",
    "rate_limit_error", "api_error", "overloaded_error", "timeout_error",
}  # fmt: skip


def test_the_list_is_complete():
    public = [
        c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, GatewayError) and not n.startswith("_")
    ]
    assert set(LEAVES) == set(public) - {GatewayError}


def test_codes_are_stable_names_and_unique():
    codes = [leaf.code for leaf in LEAVES]
    assert len(set(codes)) == len(codes)
    assert all(code == code.lower() and code.replace("_", "").isalpha() for code in codes)


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.code)
def test_each_has_its_answer(leaf):
    assert 400 <= leaf.status < 600
    assert leaf.type in OPENAI_TYPES
    assert leaf.anthropic_type in ANTHROPIC_TYPES
    assert leaf.__doc__
    assert leaf.retryable is (leaf.status in {429, 502, 503, 504})
    error = leaf("why", param="model", retry_after_s=3)
    assert (str(error), error.message, error.param, error.retry_after_s) == ("why", "why", "model", 3)
