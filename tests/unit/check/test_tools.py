"""What is wrong with a call: by name, by tool choice, by its arguments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.check.tools import MAX_ARGUMENT_CHARACTERS, GivenTools

from .streams import GOOD, fields_of, is_good, mutated, tools_of

PROTOCOLS = ["chat", "messages", "responses"]


def given_tools(protocol: str, tools=None, **fields) -> GivenTools:
    return GivenTools.read(protocol, fields_of(tools=tools_of(protocol) if tools is None else tools, **fields))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("name", "arguments"), [*GOOD, ("list_files", ""), ("list_files", " \n"), ("list_files", None)])
def test_good_calls(protocol, name, arguments):
    assert given_tools(protocol).problem_of(name, arguments) is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("get_wether", "{}", "get_wether is called, which is not among the tools given"),
        ("", "{}", "a tool without a name is called, which is not among the tools given"),
        ("rm -rf $HOME", "{}", "rm?-rf??HOME is called, which is not among the tools given"),
        ("get_weather", '{"city":"Par', "the arguments for get_weather are not valid JSON"),
        ("get_weather", '{"city":NaN}', "the arguments for get_weather are not valid JSON"),
        ("get_weather", '["Paris"]', "the arguments for get_weather are no JSON object"),
        ("get_weather", "", "the arguments for get_weather do not fit its schema: lacks city"),
        ("get_weather", '{"city":5}', "the arguments for get_weather do not fit its schema: city must be of type string"),
        ("write_file", '{"path":"","lines":[{}]}', "the arguments for write_file do not fit its schema: lines[0] lacks text"),
        ("anything", "[" * 100_000, "the arguments for anything are nested too deep"),
        ("anything", " " * MAX_ARGUMENT_CHARACTERS + "{}", f"the arguments for anything are longer than {2 << 20} characters"),
    ],
)
def test_the_words_for_bad_ones(protocol, name, arguments, words):
    assert given_tools(protocol).problem_of(name, arguments) == words


def named(protocol: str, name: str) -> dict:
    if protocol == "chat":
        return {"type": "function", "function": {"name": name}}
    return {"type": "function" if protocol == "responses" else "tool", "name": name}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tool_choice(protocol):
    none = "none" if protocol != "messages" else {"type": "none"}
    assert given_tools(protocol, tool_choice=none).problem_of("list_files", "{}") == (
        "list_files is called, though tool_choice is none"
    )
    forced = given_tools(protocol, tool_choice=named(protocol, "list_files"))
    assert forced.problem_of("list_files", "{}") is None
    assert forced.problem_of("anything", "{}") == "anything is called, which tool_choice does not allow"
    for free in ("auto", "required", {"type": "auto"}, {"type": "any"}, None, 5, [], {"type": "web_search"}, {"function": 1}):
        assert given_tools(protocol, tool_choice=free).problem_of("anything", "{}") is None


@pytest.mark.parametrize("nested", [True, False])
def test_allowed_tools(nested):
    protocol = "chat" if nested else "responses"
    inner = {"mode": "auto", "tools": [named(protocol, "list_files")]}
    choice = {"type": "allowed_tools", **({"allowed_tools": inner} if nested else inner)}
    tools = given_tools(protocol, tool_choice=choice)
    assert tools.problem_of("list_files", "{}") is None
    assert tools.problem_of("anything", "{}") is not None


def test_tools_of_other_kinds_need_only_their_name():
    log = {"type": "function", "name": "log", "parameters": {"required": ["n"]}}
    kinds = [
        {"type": "custom", "name": "apply_patch"}, {"type": "local_shell"}, {"type": "web_search"},
        {"type": "namespace", "name": "mcp__git", "tools": [log]},
    ]  # fmt: skip
    tools = given_tools("responses", kinds)
    assert tools.problem_of("apply_patch", "*** Begin Patch") is None
    assert tools.problem_of("local_shell", "x") is None
    for name in ("log", "mcp__git.log", "mcp__git__log"):
        assert tools.problem_of(name, '{"n":1}') is None
        assert "lacks n" in tools.problem_of(name, "{}")
    assert tools.problem_of("mcp__git", "{}") is not None
    assert given_tools("chat", [{"type": "custom", "custom": {"name": "sql"}}]).problem_of("sql", "select 1") is None
    shell = given_tools("messages", [{"type": "bash_20250124", "name": "bash"}])
    assert shell.problem_of("bash", '{"command":"ls"}') is None
    assert shell.problem_of("bash", '"ls"') == "the arguments for bash are no JSON object"


def test_one_name_for_two_tools_and_flat_tools_in_chat():
    two = [{"type": "function", "function": {"name": "f", "parameters": {"required": [n]}}} for n in "ab"]
    tools = given_tools("chat", [*two, {"type": "function", "name": "flat", "parameters": {"type": "object"}}])
    assert tools.problem_of("f", '{"b":1}') is None
    assert tools.problem_of("f", "{}") is not None
    assert tools.problem_of("flat", "{}") is None


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "f", "function", "none", "object", "#/a", "("]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "name", "function", "parameters", "properties", "tools", "$ref", "items", "not", "pattern"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(PROTOCOLS), JUNK, JUNK, st.sampled_from(["f", "", "function"]), st.sampled_from(["", "{", '{"type":1}']))
def test_no_request_makes_it_raise(protocol, tools, choice, name, arguments):
    found = GivenTools.read(protocol, fields_of(tools=tools, tool_choice=choice)).problem_of(name, arguments)
    assert found is None or isinstance(found, str)


def test_a_request_without_tools_and_one_that_cannot_be_read():
    assert GivenTools.read("chat", {}).problem_of("f", "{}") is not None
    assert GivenTools.read("chat", fields_of(tools={"f": {}})).problem_of("f", "{}") is None


@given(st.sampled_from(PROTOCOLS), mutated())
def test_mutated_calls(protocol, call):
    found = given_tools(protocol).problem_of(*call)
    assert (found is None) == is_good(*call)


@given(mutated())
def test_no_value_gets_into_the_words(call):
    name, arguments = call
    found = given_tools("chat").problem_of(name, arguments.replace("Paris", "SECRET").replace("Kraków", "SECRET"))
    assert "SECRET" not in str(found)


def test_values_are_judged_like_texts():
    tools = given_tools("messages")
    assert tools.problem_of_value("get_weather", {"city": "Paris"}) is None
    assert tools.problem_of_value("get_weather", "x") == "the arguments for get_weather are no JSON object"
    assert tools.problem_of_value("nobody", {}) is not None
