"""Short synthetic streams with the shapes that vLLM 0.32 and llama.cpp really send."""

VLLM_ROLE = b'data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}\n\n'  # noqa: E501
LLAMA_ROLE = b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1,"id":"c-1","model":"m","object":"chat.completion.chunk"}\n\n'  # noqa: E501
DONE = b"data: [DONE]\n\n"
COMMENT = b": ping\n\n"


def chat(delta: bytes, more: bytes = b"") -> bytes:
    return b'data: {"id":"c-1","choices":[{"index":0,"delta":{' + delta + b'},"finish_reason":null}]' + more + b"}\n\n"


def usage(fields: bytes, choices: bytes = b'"choices":[],') -> bytes:
    return b'data: {"id":"c-1","object":"chat.completion.chunk",' + choices + b'"usage":' + fields + b"}\n\n"


def event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b'\ndata: {"type":"' + name + b'",' + data + b"}\n\n"


MESSAGE_START = event(
    b"message_start",
    b'"message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,'
    b'"usage":{"cache_read_input_tokens":35,"input_tokens":1,"output_tokens":0}}',
)
TEXT_START = event(b"content_block_start", b'"index":0,"content_block":{"type":"text","text":""}')
TEXT_DELTA = event(b"content_block_delta", b'"index":0,"delta":{"type":"text_delta","text":"I"}')
THINKING_START = event(b"content_block_start", b'"index":0,"content_block":{"type":"thinking","thinking":"","signature":""}')
THINKING_DELTA = event(b"content_block_delta", b'"index":0,"delta":{"type":"thinking_delta","thinking":"hm"}')
TOOL_START = event(b"content_block_start", b'"index":0,"content_block":{"type":"tool_use","id":"t1","name":"ls","input":{}}')
BLOCK_STOP = event(b"content_block_stop", b'"index":0')
MESSAGE_DELTA = event(b"message_delta", b'"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":8}')
MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

_RESPONSE = b'"response":{"id":"resp_a7fa92","object":"response","output":[],"status":"in_progress","tools":[],"usage":null}'
CREATED = event(b"response.created", _RESPONSE + b',"sequence_number":0')
IN_PROGRESS = event(b"response.in_progress", _RESPONSE + b',"sequence_number":1')
ITEM_ADDED = event(
    b"response.output_item.added",
    b'"item":{"content":[],"id":"msg_1","role":"assistant","status":"in_progress","type":"message"},"output_index":0,"sequence_number":2',
)
CALL_ADDED = event(
    b"response.output_item.added",
    b'"item":{"arguments":"","call_id":"c1","name":"ls","type":"function_call","id":"fc_1","status":"in_progress"},"output_index":0',
)
TEXT = event(b"response.output_text.delta", b'"item_id":"msg_1","delta":"I","sequence_number":4')
REASONING = event(b"response.reasoning_text.delta", b'"item_id":"rs_1","delta":"hm","sequence_number":4')
COMPLETED = event(
    b"response.completed",
    b'"response":{"id":"resp_a7fa92","object":"response","status":"completed","output":[{"type":"message","content":[{"type":'
    b'"output_text","text":"I"}]}],"usage":{"input_tokens":15,"input_tokens_details":{"cached_tokens":3,"cached_tokens_per_turn":[]},'
    b'"output_tokens":8,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":23}},"sequence_number":9',
)
