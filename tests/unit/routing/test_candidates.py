"""Which pools can serve a request at all: protocol, what they take, context. Before any score."""

import pytest

from switchyard.errors import ContextOverflow, NotCapable, UnknownPath
from switchyard.routing.policy import SURE_OVERFLOW, Candidates, find_candidates
from switchyard.routing.signals import BYTES_PER_TOKEN

from ..build import chat, signals_of
from ..pool_views import View, views

IMAGE = chat(("user", [{"type": "image_url", "image_url": {"url": "data:,"}}]))
AUDIO = chat(("user", "x"), modalities=["audio"])
TOOLS = chat(("user", "x"), tools=[{"type": "function", "function": {"name": "f"}}])
SCHEMA = chat(("user", "x"), response_format={"type": "json_object"})
PLAIN = chat(("user", "x"))


def long(tokens: int, **fields) -> dict:
    """A body with about so many prompt tokens."""
    return chat(("user", "word" * (tokens * BYTES_PER_TOKEN // 4)), **fields)


SMALL, BIG = View("small"), View("big", takes=("tools", "structured_output", "images", "audio"))
MUTE = View("mute", takes=(), declares=True)
QUIET = View("quiet", takes=("tools", "structured_output"), declares=False)
CHAT_ONLY = View("chat_only", protocols=("chat",))

# body, pools from small to big, what is left, a word of the reasons
CAPABLE = [
    (PLAIN, [SMALL, BIG], ("small", "big"), ""),
    (TOOLS, [SMALL, BIG], ("small", "big"), ""),
    (IMAGE, [SMALL, BIG], ("big",), "small doesn't take images"),
    (AUDIO, [SMALL, BIG], ("big",), "small doesn't take audio"),
    (TOOLS, [MUTE, SMALL, BIG], ("small", "big"), "mute doesn't take tools"),
    (SCHEMA, [MUTE, SMALL], ("small",), "mute doesn't take structured output"),
    ({**TOOLS, **SCHEMA, "tools": TOOLS["tools"]}, [MUTE, BIG], ("big",), "structured output or tools"),
    # a policy that doesn't say what a pool takes leaves it to the engine, when nobody else can
    (IMAGE, [QUIET], ("quiet",), ""),
    (IMAGE, [SMALL, QUIET], ("quiet",), "small doesn't take images"),
    (IMAGE, [QUIET, BIG], ("big",), "quiet doesn't take images"),
]


@pytest.mark.parametrize(("body", "pools", "left", "reason"), CAPABLE, ids=range(len(CAPABLE)))
def test_pools_that_lack_something_are_out(body, pools, left, reason):
    found = find_candidates([p.name for p in pools], views(*pools), signals_of(body))
    assert found.pools == left
    assert reason in "; ".join(found.excluded)
    assert bool(found.excluded) == (found.pools != tuple(p.name for p in pools)) or found.pools == ("quiet",)


def test_when_nobody_can_the_client_is_told_what_each_pool_lacks():
    with pytest.raises(NotCapable) as caught:
        find_candidates(["small", "mute"], views(SMALL, MUTE), signals_of(IMAGE))
    assert caught.value.message == (
        "no pool can serve this request: pool small doesn't take images; pool mute doesn't take images. "
        "Leave that out, or ask a model that takes it"
    )
    assert (caught.value.status, caught.value.code) == (400, "no_capable_pool")


def test_protocols():
    body = {"model": "auto", "input": "x"}
    found = find_candidates(["chat_only", "big"], views(CHAT_ONLY, BIG), signals_of(body, "responses"))
    assert found == Candidates(("big",), ("chat_only doesn't speak responses",))
    with pytest.raises(UnknownPath) as caught:
        find_candidates(["chat_only"], views(CHAT_ONLY), signals_of(body, "responses"))
    assert caught.value.message == "no pool of this model speaks responses (chat_only); ask another model"


# prompt tokens, max_tokens, contexts from small to big, clamping, what is left
CONTEXT = [
    (1000, 1000, (4000, 8000), False, ("small", "big")),
    (1000, 3500, (4000, 8000), False, ("big",)),
    (5000, 100, (4000, 8000), False, ("big",)),
    (1000, 3500, (None, 8000), False, ("small", "big")),  # unknown: the engine will say
    (5000, 100, (4000, None), False, ("big",)),
    (30_000, 32_000, (32_768, 131_072), False, ("big",)),  # field case F13
    (30_000, 32_000, (32_768, 131_072), True, ("small", "big")),
    (30_000, 0, (32_768, 131_072), False, ("small", "big")),
    (33_000, 32_000, (32_768, 131_072), True, ("big",)),
    # the estimate may be wrong by half: the longest is asked all the same
    (9000, 0, (4000, 8000), False, ("big",)),
    (9000, 0, (8000, 4000), False, ("small",)),
    (1000, 32_000, (4000, 8000), False, ("big",)),
]


@pytest.mark.parametrize(("prompt", "wanted", "contexts", "clamps", "left"), CONTEXT, ids=range(len(CONTEXT)))
def test_prompt_and_wanted_output_must_fit(prompt, wanted, contexts, clamps, left):
    pools = views(*(View(n, c, clamps=clamps) for n, c in zip(("small", "big"), contexts, strict=True)))
    signals = signals_of(long(prompt, max_tokens=wanted))
    assert abs(signals.prompt_tokens - prompt) < 20
    found = find_candidates(["small", "big"], pools, signals)
    assert found.pools == left
    assert len(left) == 2 or found.excluded


def test_the_reason_names_the_context_that_is_too_short():
    pools = views(View("small", 4000), View("big", 8000))
    assert find_candidates(["small", "big"], pools, signals_of(long(5000))).excluded == ("small holds 4000 tokens",)


def test_a_prompt_that_is_surely_too_long_is_refused_with_a_code_that_agents_know():
    pools = views(View("small", 1000), View("big", 2000))
    fits_perhaps = signals_of(long(SURE_OVERFLOW * 2000 - 100))
    assert find_candidates(["small", "big"], pools, fits_perhaps).pools == ("big",)
    with pytest.raises(ContextOverflow) as caught:
        find_candidates(["small", "big"], pools, signals_of(long(SURE_OVERFLOW * 2000 + 100)))
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    assert caught.value.message.startswith("prompt is too long: about 8")
    assert "the longest pool, big, has a context length of 2000 tokens" in caught.value.message


def test_wanting_much_output_alone_is_no_overflow():
    pools = views(View("small", 1000))
    assert find_candidates(["small"], pools, signals_of(long(100, max_tokens=32_000))).pools == ("small",)


def test_a_pool_that_lacks_something_is_not_asked_for_its_context():
    pools = views(View("small", 1_000_000), View("big", 2000, takes=("images",)))
    with pytest.raises(ContextOverflow, match="longest pool, big"):
        find_candidates(
            ["small", "big"], pools, signals_of({**IMAGE, "messages": [*IMAGE["messages"], *long(9000)["messages"]]})
        )
