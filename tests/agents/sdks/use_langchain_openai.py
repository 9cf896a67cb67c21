"""langchain-openai with one tool and the loop written out. Settings come from OPENAI_BASE_URL, OPENAI_API_KEY and the
arguments."""

import argparse
from functools import reduce
from operator import add
from pathlib import Path

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

parser = argparse.ArgumentParser()
parser.add_argument("question")
parser.add_argument("--session", help="id of the conversation, for the gateway")
parser.add_argument("--stream", action="store_true")
given = parser.parse_args()


@tool
def read_file(path: str) -> str:
    """Read a text file."""
    return Path(path).read_text()


headers = {"x-switchyard-session-id": given.session} if given.session else {}
model = ChatOpenAI(model="auto", default_headers=headers).bind_tools([read_file])
messages = [HumanMessage(given.question)]
while True:
    answer = reduce(add, model.stream(messages)) if given.stream else model.invoke(messages)
    messages.append(answer)
    if not answer.tool_calls:
        break
    messages += [read_file.invoke(call) for call in answer.tool_calls]
print(answer.text)
