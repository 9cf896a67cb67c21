"""How a text looks: its script, by one look where eight would do the same."""

import re

from hypothesis import given
from hypothesis import strategies as st

from switchyard.routing.looks import script_of

RANGES = {
    "han": "\u4e00-\u9fff", "kana": "\u3040-\u30ff", "hangul": "\uac00-\ud7af", "cyrillic": "\u0400-\u04ff",
    "arabic": "\u0600-\u06ff", "devanagari": "\u0900-\u097f", "greek": "\u0370-\u03ff", "hebrew": "\u0590-\u05ff",
    "latin": "A-Za-z",
}  # fmt: skip
_PIECES = st.sampled_from(
    ["word", "12, ", "\u2014\u201cquoted\u201d", "\u00e9\u00fc", "\u4e2d\u6587", "\u3042", "\ud55c", "\u044f", "\u0627",
     "\u0928", "\u03bb", "\u05e9", "\U0001f600", "\udc80", "\ud83d", ""]
)  # fmt: skip


@given(st.one_of(st.text(max_size=60), st.lists(_PIECES, max_size=12).map("".join)))
def test_the_script_is_the_first_that_is_found_rarer_ones_first(text):
    assert script_of(text) == next((name for name, range_ in RANGES.items() if re.search(f"[{range_}]", text)), "")
