"""Where fuzzing begins: good inputs of each target, and tokens that matter to it."""

from __future__ import annotations

import json

CHAT = {
    "model": "auto",
    "stream": True,
    "max_tokens": 64,
    "messages": [
        {"role": "system", "content": "Be brief.\U0001f600"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "def f(): pass"}, {"type": "image_url", "image_url": {"url": "data:"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "ls", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "Error: no"},
    ],
    "tools": [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}],
}
MESSAGES = {
    "model": "auto",
    "max_tokens": 64,
    "system": [{"type": "text", "text": "x-anthropic-billing-header: cc=1\nYou name titles"}],
    "metadata": {"user_id": "user_1_account__session_0123456789abcdef"},
    "messages": [
        {"role": "user", "content": "<system-reminder>x</system-reminder>hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ls", "input": {"a": 1}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": [{"type": "image"}]}],
        },
    ],
    "thinking": {"type": "enabled"},
    "output_config": {"effort": "low", "format": {"type": "json_schema"}},
}
RESPONSES = {
    "model": "auto",
    "instructions": "x",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Summarize the conversation"}]},
        {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "Traceback"},
    ],
    "previous_response_id": "resp_1",
    "reasoning": {"effort": "high"},
    "text": {"format": {"type": "json_object"}},
    "prompt_cache_key": "k",
}
BODIES = [
    *(json.dumps(b, ensure_ascii=ascii).encode() for b in (CHAT, MESSAGES, RESPONSES) for ascii in (True, False)),
    b'{"model":"m","input":"hi"}', b'{ "model" : "m" , "prompt" : [ "a" , [1] ] }', b'{}',
    b'{"a":{"b":[1,-2.5e3,null]},"model":"\\ud800"}', b'{"model":"m","messages":' + b"[" * 60 + b"]" * 60 + b"}",
]  # fmt: skip
BODY_TOKENS = [
    b'"model"', b'"messages"', b'"input"', b'"role"', b'"content"', b'"type"', b'"text"', b'"tools"', b'"tool_calls"',
    b'"function"', b'"name"', b'"arguments"', b'"output"', b'"tool_result"', b'"image"', b'"user"', b'"assistant"',
    b'"system"', b'"max_tokens"', b"99999999999999999999999", b"1e999", b"-0", b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\xff"',
    b"null", b"true", b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\xef\xbb\xbf", b"\xc3\x28", b"NaN", b"01", b"1.",
    b'"mod\\u0065l":1,', b'"metadata":{"user_id":"', b'"reasoning_effort":', b'"response_format":{"type":"json_object"}',
    b"<system-reminder>",
]  # fmt: skip

STREAMS = [
    b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
    b'event: message_start\r\ndata: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\r\n\r\n: ping\r\n\r\n',
    b'data: {"type":"response.created","response":{"id":"resp_1","usage":null},"sequence_number":0}\r\rdata: a\rdata: b\r\r',
    b"\xef\xbb\xbfdata:\n\n\n\r\n\r\r\n",
]
STREAM_TOKENS = [
    b"\n", b"\r", b"\r\n", b"\n\n", b"data: ", b"data:", b"event: ", b": ", b'"usage":{', b'"choices":[]', b'"content":"x"',
    b'"id":"resp_', b'"sequence_number":9', b"}", b"{", b'"', b'"prompt_tokens":', b"999999999999999999999999", b"\xff",
    b"[DONE]", b'"cached_tokens":1', b'"input_tokens_details":{', b"null",
]  # fmt: skip

ANSWERS = [
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\nx",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n",
    b"HTTP/1.1 503 Busy\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-t\r\n\r\n1;ext=1\r\na\r\n0\r\nx-t: 1\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n",
]
HEADERS = [
    b"host: x\r\nauthorization: Bearer sk-1\r\ncontent-type: application/json\r\nconnection: keep-alive, x-hop\r\nx-hop: 1",
    b"x-a:\r\nx-b: \t v \t\r\nTE: trailers\r\nUpgrade: h2c\r\ncookie: a=b\r\nx-api-key: k\r\nx-request-id: 1",
    b"x-fold: a\r\n b\r\nx-high: \xff\xfe\r\ncontent-length: 3\r\ndate: now\r\nserver: x",
]
HTTP_TOKENS = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b": ", b":", b" ", b"\t", b"\0", b"\x0b", b"\xff", b"HTTP/1.1", b"HTTP/1.0",
    b"HTTP/2.0", b"GET ", b"POST ", b"HEAD ", b"DELETE ", b"CONNECT ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"/v1/chat/completions", b"/v1/responses/resp_1", b"/healthz", b"/v1/decision", b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n", b"Content-Length: 5000\r\n", b"Transfer-Encoding: chunked\r\n",
    b"transfer-encoding: xchunked\r\n", b"Connection: close\r\n", b"connection: upgrade\r\nupgrade: websocket\r\n",
    b"Expect: 100-continue\r\n", b"authorization: Bearer sk-fuzz\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n",
    b"ffffffffffffffff\r\n", b"0\r\nx-trailer: 1\r\n\r\n", b"x-request-id: a b\r\n", b"http://evil/v1/chat/completions",
    b"//", b"/../", b"%2e", b"?", b"#", b"*", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 304 x\r\n",
]  # fmt: skip


def request(
    method: str = "POST", target: str = "/v1/chat/completions", body: bytes = b'{"model":"m"}', lines: str = ""
) -> bytes:
    """A good request."""
    return f"{method} {target} HTTP/1.1\r\nhost: x\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


REQUESTS = [
    request(),
    request(lines="authorization: Bearer sk-fuzz\r\n") + request("GET", "/v1/responses/resp_1", b"", "x-api-key: sk-fuzz\r\n"),
    b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n3;x=1\r\nabc\r\n0\r\nx-t: 1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /readyz HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: xyz\r\n\r\n" + request(),
    request("POST", "/v1/decision", b'{"model":"m"}'),
    b"HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
    request(lines="expect: 100-continue\r\n"),
    request(lines="connection: upgrade\r\nupgrade: websocket\r\n"),
    b"POST /v1/embeddings HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\n{}",
    request() + request("DELETE", "/v1/responses/resp_1/cancel", b"") + b"GARBAGE\r\n\r\n",
    b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /v1/../metrics HTTP/1.1\r\nhost: x\r\n\r\n",
]
ERRORS = [
    b'{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}',
    b'{"object":"error","message":"too long","type":"x","code":1}',
    b'{"detail":[{"loc":["body","model"],"msg":"missing"}]}',
    b'{"type":"error","error":{"type":"api_error","message":"x"}}',
    b"<html><script>x</script><b>502 Bad Gateway</b></html>",
    b"Internal Server Error",
    b'{"choices":[{"logprobs":{"content":[{"top_logprobs":[{"token":" Yes","logprob":-0.1},{"token":"no","logprob":-3}]}]}}]}',
    b'data: {"sequence_number": 41, "response": {"id": "resp_7"}}\n\n',
]
ERROR_TOKENS = [
    b'"error":', b'"message":', b'"detail":', b'"type":', b'"code":', b'"param":', b'"loc":', b'"msg":',
    b"99999999999999999999999", b"[", b"]", b"{", b"}", b'"', b",", b"null", b"<script", b"</script>", b"<", b">", b"\xff",
    b'"\\ud800"', b'"sequence_number":', b'"id":"resp_', b'"logprob":', b"1e999", b'"token":"yes"',
]  # fmt: skip

SEEDS: dict[str, tuple[list[bytes], list[bytes]]] = {
    "sse": (STREAMS, STREAM_TOKENS),
    "engine": (ANSWERS, HTTP_TOKENS),
    "headers": (HEADERS, HTTP_TOKENS),
    "body": (BODIES, BODY_TOKENS),
    "envelope": ([*ERRORS, *STREAMS], ERROR_TOKENS),
    "front": (REQUESTS, HTTP_TOKENS),
}
"""For each target: good inputs without the choices in front of them, and tokens."""
CHOICES = {"sse": 5, "engine": 5, "headers": 1, "body": 2, "envelope": 5, "front": 4}
"""Bytes of choices that each target takes first."""
