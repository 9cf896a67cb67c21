"""The check of tool calls: nothing here opens a socket, waits or decides about pools.

A route with `check: {tool_calls: escalate}` shows a small pool's tool calls to the client only when they can be run.
`tools.py` says what is wrong with a call, `schema.py` and `patterns.py` read JSON Schema for it. `whole.py` looks at
answers in one piece; `gate.py` holds the calls of a stream back until they are judged, and `continuation.py` lets the
bigger pool's stream go on in the same message. What the three protocols look like is in `chat.py`, `messages.py` and
`responses.py`, nowhere else.
"""
