"""What a strict client makes of a stream: one message, or an AssertionError. Written without the code under test."""

import json
import re
from dataclasses import dataclass, field


@dataclass
class Message:
    """One message, as a client has it in the end.

    Attributes:
        calls: id, name and text of the arguments of each call.
        over: it was ended properly.
    """

    head: tuple = ()
    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    finish: str | None = None
    usage: dict | None = None
    over: bool = False

    @property
    def called(self) -> list[tuple[str, str]]:
        return [(name, arguments) for _, name, arguments in self.calls]


def events_of(raw: bytes) -> list[tuple[str, str]]:
    """Name and data of each event that has data."""
    lines = re.split(r"\r\n|\r|\n", raw.decode().removeprefix("\ufeff"))
    events, name, data = [], "", []
    for line in [*lines, ""]:
        if not line:
            if data:
                events.append((name, "\n".join(data)))
            name, data = "", []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif line.startswith("event:"):
            name = line[6:].strip()
        else:
            assert line.startswith(":"), line
    return events


def read(protocol: str, raw: bytes) -> Message:
    return {"chat": read_chat, "messages": read_messages, "responses": read_responses}[protocol](raw)


def read_chat(raw: bytes, choice: int = 0) -> Message:
    found = Message()
    done, roles, by_index = 0, 0, {}
    for _, data in events_of(raw):
        assert not done, "after [DONE]"
        if data == "[DONE]":
            done += 1
            continue
        chunk = json.loads(data)
        head = (chunk["id"], chunk["created"], chunk["model"])
        assert found.head in ((), head)
        found.head = head
        if not chunk["choices"]:
            assert found.usage is None
            assert found.finish is not None
            found.usage = chunk["usage"]
        for one in chunk["choices"]:
            if one["index"] != choice:
                continue
            assert found.finish is None, "after the finish"
            delta = one["delta"]
            roles += "role" in delta
            found.text += delta.get("content") or ""
            found.reasoning += delta.get("reasoning") or ""
            for call in delta.get("tool_calls") or []:
                if call["index"] not in by_index:
                    assert call["index"] == len(found.calls), "tool indices have a gap"
                    assert call["id"]
                    by_index[call["index"]] = [call["id"], call["function"]["name"], ""]
                    found.calls.append(by_index[call["index"]])
                by_index[call["index"]][2] += call["function"].get("arguments") or ""
            found.finish = one["finish_reason"]
    assert roles <= 1
    assert len({c[0] for c in found.calls}) == len(found.calls), "an id twice"
    found.over = found.finish is not None
    return found


def read_messages(raw: bytes) -> Message:
    found = Message()
    state, blocks, open_blocks = "new", [], set()
    for name, data in events_of(raw):
        event = json.loads(data)
        kind = event["type"]
        assert name == kind
        assert state != "stopped"
        if kind == "message_start":
            assert state == "new"
            state = "started"
            found.head = (event["message"]["id"], event["message"]["model"])
            found.usage = dict(event["message"]["usage"])
        elif kind == "content_block_start":
            assert state == "started"
            assert event["index"] == len(blocks)
            open_blocks.add(event["index"])
            blocks.append(event["content_block"])
            if blocks[-1]["type"] == "tool_use":
                found.calls.append([blocks[-1]["id"], blocks[-1]["name"], ""])
                blocks[-1]["call"] = found.calls[-1]
        elif kind == "content_block_delta":
            assert event["index"] in open_blocks
            block, delta = blocks[event["index"]], event["delta"]
            pairs = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
            assert delta["type"] == pairs[block["type"]]
            found.text += delta.get("text", "")
            found.reasoning += delta.get("thinking", "")
            if "call" in block:
                block["call"][2] += delta["partial_json"]
        elif kind == "content_block_stop":
            open_blocks.remove(event["index"])
        elif kind == "message_delta":
            assert state == "started"
            assert not open_blocks
            state = "ended"
            found.finish = event["delta"]["stop_reason"]
            found.usage |= event["usage"]
        else:
            assert kind == "message_stop"
            assert state == "ended"
            state = "stopped"
    assert len({c[0] for c in found.calls}) == len(found.calls), "an id twice"
    found.over = state == "stopped"
    return found


def read_responses(raw: bytes) -> Message:
    found = Message()
    items, keys, last_number, state = [], {}, -1, "new"
    for name, data in events_of(raw):
        event = json.loads(data)
        kind = event["type"]
        assert name == kind
        assert state != "over"
        if "sequence_number" in event:
            assert event["sequence_number"] > last_number
            last_number = event["sequence_number"]
        if "response" in event:
            response = event["response"]
            assert found.head in ((), (response["id"],))
            found.head = (response["id"],)
        if kind == "response.created":
            assert state == "new"
            state = "created"
        elif kind == "response.in_progress":
            assert state == "created"
            assert not items
        elif kind == "response.output_item.added":
            assert state == "created"
            assert event.get("output_index", len(items)) == len(items), "places have a gap"
            item = {"item": event["item"], "parts": {}, "open": set(), "text": "", "done": False, "place": len(items)}
            items.append(item)
            for key in (event.get("output_index"), event["item"].get("id"), event["item"].get("call_id")):
                if key is not None:
                    assert key not in keys
                    keys[key] = item
        elif kind == "response.completed":
            state = "over"
            assert all(item["done"] for item in items)
            assert response["output"] == [item["item"] for item in items]
            found.usage, found.finish = response["usage"], response["status"]
        else:
            item = keys[event.get("output_index", event.get("item_id", event.get("item", {}).get("id")))] if (
                {"output_index", "item_id"} & set(event) or "id" in event["item"]
            ) else keys[event["item"]["call_id"]]  # fmt: skip
            assert not item["done"]
            if "item_id" in event and "id" in item["item"]:
                assert event["item_id"] == item["item"]["id"]
            if kind == "response.output_item.done":
                assert not item["open"]
                whole = event["item"]
                assert whole.get("id") == item["item"].get("id")
                item |= {"item": whole, "done": True}
                if whole["type"] == "function_call":
                    assert whole["arguments"] == item["text"]
                    found.calls.append([whole["call_id"], whole["name"], whole["arguments"]])
                elif item["text"]:
                    assert "".join(part["text"] for part in whole["content"]) == item["text"]
                    if whole["type"] == "message":
                        found.text += item["text"]
                    else:
                        found.reasoning += item["text"]
            elif kind.endswith("_part.added"):
                item["open"].add("part")
            elif kind.endswith("_part.done"):
                item["open"].remove("part")
                assert event["part"].get("text", "") == item["text"]
            elif kind.endswith(".delta"):
                item["open"] |= {"text"} if "part" in item["open"] else set()
                item["text"] += event["delta"]
            else:
                assert kind.endswith(".done")
                item["open"].discard("text")
                assert event.get("text", event.get("arguments")) == item["text"]
    assert len({c[0] for c in found.calls}) == len(found.calls), "an id twice"
    found.over = state == "over"
    return found
