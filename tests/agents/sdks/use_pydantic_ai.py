"""pydantic-ai with one tool. Settings come from OPENAI_BASE_URL, OPENAI_API_KEY and the arguments."""

import argparse
import asyncio
from pathlib import Path

from pydantic_ai import Agent, ModelSettings
from pydantic_ai.models.openai import OpenAIChatModel

parser = argparse.ArgumentParser()
parser.add_argument("question")
parser.add_argument("--session", help="id of the conversation, for the gateway")
parser.add_argument("--stream", action="store_true")
given = parser.parse_args()

headers = {"x-switchyard-session-id": given.session} if given.session else {}
agent = Agent(OpenAIChatModel("auto"), instructions="You read files.", model_settings=ModelSettings(extra_headers=headers))


@agent.tool_plain
def read_file(path: str) -> str:
    """Read a text file."""
    return Path(path).read_text()


async def main() -> None:
    if not given.stream:
        print((await agent.run(given.question)).output)
        return
    async with agent.run_stream(given.question) as result:
        async for piece in result.stream_text(delta=True):
            print(piece, end="")
    print()


asyncio.run(main())
