"""The OpenAI Agents SDK with one tool. Settings come from OPENAI_BASE_URL, OPENAI_API_KEY and the arguments."""

import argparse
import asyncio
from pathlib import Path

from agents import (
    Agent,
    Runner,
    function_tool,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

parser = argparse.ArgumentParser()
parser.add_argument("question")
parser.add_argument("--session", help="id of the conversation, for the gateway")
parser.add_argument("--stream", action="store_true")
parser.add_argument("--chat", action="store_true", help="chat completions instead of Responses")
given = parser.parse_args()

set_tracing_disabled(True)  # else it sends traces to OpenAI
headers = {"x-switchyard-session-id": given.session} if given.session else {}
set_default_openai_client(AsyncOpenAI(default_headers=headers), use_for_tracing=False)
if given.chat:
    set_default_openai_api("chat_completions")


@function_tool
def read_file(path: str) -> str:
    """Read a text file."""
    return Path(path).read_text()


async def main() -> None:
    agent = Agent(name="reader", instructions="You read files.", model="auto", tools=[read_file])
    if not given.stream:
        print((await Runner.run(agent, given.question)).final_output)
        return
    result = Runner.run_streamed(agent, given.question)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print(event.data.delta, end="")
    print()


asyncio.run(main())
