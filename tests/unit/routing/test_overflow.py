"""Does an engine's refusal say that the request is longer than its context? In the words of each engine."""

import pytest

from switchyard.routing.overflow import says_overflow

SAYS = [
    (
        400,
        b'{"error":{"message":"This model\'s maximum context length is 2048 tokens. However, you requested 2500","code":400}}',
    ),
    (400, b'{"object":"error","message":"This model\'s maximum context length is 32768 tokens.","code":400}'),
    (400, b'{"error":{"message":"The input (40000 tokens) is longer than the model\'s context length (32768 tokens)."}}'),
    (
        400,
        b'{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}',
    ),
    (400, b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000"}}'),
    (400, b'{"error":{"code":"context_length_exceeded","message":"x"}}'),
    (413, b"Input is too long for requested model"),
]
SAYS_NOT = [
    (400, b'{"error":{"message":"max_tokens must be at least 1"}}'),
    (400, b'{"error":{"message":"context is everything"}}'),
    (400, b""),
    (500, b"maximum context length"),
    (429, b"maximum context length"),
    (200, b"maximum context length"),
    (400, b"x" * 5000 + b"maximum context length"),  # deep inside an echo of the request
]


@pytest.mark.parametrize(("status", "body"), SAYS, ids=range(len(SAYS)))
def test_overflow(status, body):
    assert says_overflow(status, body)


@pytest.mark.parametrize(("status", "body"), SAYS_NOT, ids=range(len(SAYS_NOT)))
def test_anything_else(status, body):
    assert not says_overflow(status, body)
