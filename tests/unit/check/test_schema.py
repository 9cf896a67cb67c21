"""Whether a value fits a schema: the same answer as the standard's, in bounded time, without the value in the words."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from switchyard.check.schema import misfit

POINT = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ({"type": "object"}, [], "must be of type object"),
        ({"type": ["string", "null"]}, 1, "must be of type string or null"),
        ({"type": "integer"}, True, "must be of type integer"),
        (POINT, {}, "lacks x"),
        (POINT, {"x": "1"}, "x must be of type number"),
        ({"properties": {"p": {"items": POINT}}}, {"p": [{"x": 1}, {}]}, "p[1] lacks x"),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"town": 1}, "has town, which its schema does not know"),
        (
            {"additionalProperties": False},
            {"a secret sentence": 1},
            "has a property, which its schema does not know",
        ),
        ({"additionalProperties": {"type": "string"}}, {"secret": 5}, "* must be of type string"),
        ({"enum": ["a", "b"]}, "secret", "is none of the values allowed"),
        ({"enum": [1, [True]]}, [1], "is none of the values allowed"),
        ({"const": 1}, True, "is not the value allowed"),
        ({"minimum": 3}, 2, "is too small"),
        ({"maximum": 3, "exclusiveMaximum": True}, 3, "is too big"),
        ({"maxLength": 2}, "abc", "is too long"),
        ({"uniqueItems": True}, [1, 1.0], "has an entry twice"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "fits none of its alternatives"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, 1, "fits more than one of its alternatives"),
        ({"not": {"required": ["a"]}}, {"a": 1}, "is what it must not be"),
        ({"pattern": "^a+$"}, "secret", "does not match its pattern"),
        ({"items": [{"type": "string"}], "additionalItems": False}, ["a", 1], "[1] is not allowed"),
        ({"$ref": "#/$defs/p~1q", "$defs": {"p/q": {"type": "null"}}}, 1, "must be of type null"),
        ({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "null"}}}, 1, "must be of type null"),
    ],
)
def test_the_words_for_a_misfit(schema, value, words):
    assert misfit(schema, value) == words


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "any"}, 1),
        ({"type": []}, 1),
        ({"type": {"a": 1}}, 1),
        ({"required": True}, {}),
        ({"required": "city"}, {}),
        ({"properties": ["a"]}, {"a": 1}),
        ({"properties": {"a": "string"}}, {"a": 1}),
        ({"enum": "a"}, "b"),
        ({"minimum": "3"}, 1),
        ({"maxLength": None}, "abc"),
        ({"items": "string"}, [1]),
        ({"anyOf": []}, 1),
        ({"anyOf": {"type": "string"}}, 1),
        ({"pattern": "("}, "x"),
        ({"pattern": "(a+)+$"}, "b"),
        ({"pattern": r"^\p{L}$"}, "1"),
        ({"multipleOf": 0}, 1),
        ({"multipleOf": 0.1}, 0.3),
        ({"multipleOf": 1e-300}, 1e300),
        ({"$ref": "https://example.com/schema.json"}, 1),
        ({"$ref": "#/nowhere"}, 1),
        ({"$ref": 5}, 1),
        ({"$ref": "#"}, 1),
        ({"not": {"$ref": "file:///etc/passwd"}}, 1),
        ({"not": {"type": "any"}}, 1),
        ({"not": {"unevaluatedProperties": False}}, {"a": 1}),
        ({"oneOf": [{"pattern": "(a*)*"}, {"type": "string"}]}, "a"),
        ({"type": "string", "nullable": True}, None),
        ({"format": "date"}, "yesterday"),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$ref": "#/definitions/a",
                "type": "null",
                "definitions": {"a": {}},
            },
            1,
        ),
        ("string", 1),
        (5, 1),
        ([], 1),
        (None, 1),
    ],
)
def test_what_is_odd_or_unknown_counts_as_met(schema, value):
    assert misfit(schema, value) is None


NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, 2, 3.5, -1, "", "a", "ab", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["string", "number", "integer", "boolean", "null", "object", "array"])
COUNTS = st.integers(0, 3)


def some_of(**keywords) -> st.SearchStrategy[dict]:
    return st.fixed_dictionaries({}, optional=keywords)


def wider(inner: st.SearchStrategy) -> st.SearchStrategy:
    schemas = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(NAMES, inner, max_size=3)
    patterns = st.dictionaries(st.sampled_from(["^a", "b", "^[ab]?c$"]), inner, max_size=2)
    return st.one_of(
        some_of(
            type=TYPES,
            properties=by_name,
            required=st.lists(NAMES, unique=True, max_size=2),
            additionalProperties=inner,
            patternProperties=patterns,
            propertyNames=inner,
            minProperties=COUNTS,
            maxProperties=COUNTS,
            dependentRequired=st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=2), max_size=2),
            dependentSchemas=by_name,
        ),
        some_of(
            items=inner, prefixItems=schemas, contains=inner, minContains=COUNTS, maxContains=COUNTS, uniqueItems=st.booleans()
        ),
        some_of(allOf=schemas, anyOf=schemas, oneOf=schemas, **{"not": inner}),
        st.fixed_dictionaries({"if": inner}, optional={"then": inner, "else": inner}),
        st.just({"$ref": "#/$defs/d"}),
    )


FLAT = st.one_of(
    st.booleans(),
    some_of(type=TYPES | st.lists(TYPES, unique=True, min_size=1, max_size=3)),
    some_of(enum=st.lists(VALUES, min_size=1, max_size=3, unique_by=repr), const=VALUES),
    some_of(minimum=st.integers(-1, 3), exclusiveMaximum=st.integers(-1, 3), multipleOf=st.sampled_from([1, 2, 0.5])),
    some_of(minLength=COUNTS, maxLength=COUNTS, pattern=st.sampled_from(["^a", "b$", "[ab]c?", "^(a|bc)?c"])),
    some_of(minItems=COUNTS, maxItems=COUNTS),
)
SCHEMAS = st.recursive(FLAT, wider, max_leaves=8)


@settings(max_examples=400)
@given(SCHEMAS, FLAT, VALUES)
def test_the_answer_is_the_standards(schema, inner, value):
    schema = {"allOf": [schema], "$defs": {"d": inner}}
    assert (misfit(schema, value) is None) == Draft202012Validator(schema).is_valid(value)


@given(st.lists(FLAT, max_size=3), FLAT, FLAT, VALUES)
def test_and_that_of_older_drafts(places, rest, inner, value):
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "items": places,
        "additionalItems": rest,
        "dependencies": {"a": ["b"], "b": inner},
        "properties": {"c": {"$ref": "#/definitions/d", "type": "null"}},
        "definitions": {"d": inner},
    }
    assert (misfit(schema, value) is None) == Draft7Validator(schema).is_valid(value)


DOUBLING = {f"d{i}": {"anyOf": [{"not": {"$ref": f"#/$defs/d{i + 1}"}}] * 2} for i in range(30)} | {"d30": True}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$ref": "#/$defs/d0", "$defs": DOUBLING}, 1),
        ({"properties": {"a": {"$ref": "#"}}, "allOf": [{"$ref": "#"}]}, {"a": {}}),
        ({"uniqueItems": True}, [[i] for i in range(200_000)]),
        ({"items": {"enum": [[i] for i in range(3000)]}}, [[2999]] * 3000),
        ({"items": {"required": ["a"] * 3000}}, [{"a": 1}] * 3000),
        ({"items": {"properties": {f"p{i}": {} for i in range(3000)}}}, [{}] * 3000),
        ({"items": {f"x{i}": 1 for i in range(3000)}}, [{}] * 3000),
        ({"patternProperties": {f"^x{i}": {} for i in range(2000)}}, {f"y{i}": 1 for i in range(2000)}),
        ({"items": {"not": {"pattern": "^[ab]*[bc]*[cd]*$"}}}, ["b" * 40 + "x"] * 20_000),
        (
            {"pattern": "^(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)$"},
            "a" * 18,
        ),
        ({"pattern": "a*a*a*a*a*b"}, "a" * 1000),
        ({"pattern": "[](]+)+(a+)+$"}, "a" * 1000),
    ],
)
def test_a_judgement_takes_bounded_time(schema, value):
    began = time.process_time()
    assert misfit(schema, value) is None
    assert time.process_time() - began < 0.2


def test_a_value_nested_as_deep_as_can_be_is_no_error():
    value: list = []
    for _ in range(900):
        value = [value]
    for schema in ({"$ref": "#", "items": {"$ref": "#"}}, {"items": {"$ref": "#"}}, {"const": value}, {"enum": [value, 1]}):
        assert misfit(schema, value) is None
