import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import RequestError
from gpushare_cli.inject.kube_yaml import Misplaced, dump, parse
from gpushare_cli.inject.manifest import Document, read, split

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)
    | st.sampled_from(
        ["1e3", "y", "no", "12:30", "2020-01-01", "010", "0x1f", "~", "", "null", "=", "a\nb\n", " x", "1_0"]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcyn1", max_size=3), inner, max_size=3),
)


def loaded(text: str) -> list[object]:
    return [document.load() for document in split(text) if document.node is not None or document.json]


@given(st.lists(VALUES, max_size=3) | st.dictionaries(st.text("abcyn1", max_size=3), VALUES, max_size=3))
def test_what_is_written_reads_back_the_same(value: object) -> None:
    document = Document(line=1, text="", node=parse(dump(value)))
    assert document.load() == value


@given(st.text(st.sampled_from("-\n\r ab{}:#\"'"), max_size=40))
def test_the_documents_of_a_stream_joined_are_the_stream(text: str) -> None:
    try:
        documents = split(text)
    except RequestError:
        return
    assert text == "".join(document.text for document in documents)


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("12:30", "12:30"),
        ("2020-01-01", "2020-01-01"),
        ("1e3", 1000.0),
        ('"1e3"', "1e3"),
        ("y", True),
        ("off", False),
        ("010", 8),
        ("0o17", 15),
        ("0x1f", 31),
        ("1_000", 1000),
        ("089", 89.0),
        ("=", "="),
        ("~", None),
        ("25%", "25%"),
        ("4Gi", "4Gi"),
    ],
)
def test_scalars_mean_what_they_mean_to_kubernetes(scalar: str, value: object) -> None:
    found = loaded(f"key: {scalar}")
    assert found == [{"key": value}]
    assert type(found[0]["key"]) is type(value)  # type: ignore[index]


def test_keys_become_strings_as_in_kubernetes() -> None:
    assert loaded("1: a\non: b") == [{"1": "a", "true": "b"}]


def test_an_alias_is_written_out_and_shares_nothing() -> None:
    (value,) = loaded("a: &x {k: 1}\nb: *x\nc: {<<: *x, m: 2}")
    assert value == {"a": {"k": 1}, "b": {"k": 1}, "c": {"k": 1, "m": 2}}
    assert value["a"] is not value["b"]


def test_json_documents_may_follow_one_another() -> None:
    text = '{"a": 1}\n{"b":\t2}\n---\n{c: 3,}\n'
    documents = split(text)
    assert [(d.line, d.json) for d in documents] == [(1, True), (2, True), (4, False)]
    assert loaded(text) == [{"a": 1}, {"b": 2}, {"c": 3}]


def test_lines_are_counted_from_the_start_of_the_stream() -> None:
    documents = split("# a\n\nkind: A\n---\n\n# c\nkind: B\n--- # same line\nkind: C\n---\n")
    assert [d.line for d in documents if d.node] == [3, 7, 9]
    assert [d.top("kind") for d in documents] == ["A", "B", "C", ""]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: [1", "line 2: not YAML"),
        ("a: 1\n---\na:\n\t- b", "line 4: not YAML: .* never with tabs"),
        ("a: {{ .Values.x }} y", "line 1: not YAML: .*helm template"),
        ("a: {{ .Values.x }}", "helm template"),
        ("a: 1\na: 2", "the key 'a' occurs twice"),
        ('{"a": 1, "a": 2}', "line 1: the key 'a' occurs twice"),
        ('{"a": NaN}', "line 1: NaN is not JSON"),
        ('{"a": 1e400}', "line 1: 1e400 is not a JSON number"),
        ('{"a": %s}' % ("9" * 5000), "line 1: the number has 5000 digits"),
        ('{"a":\n"\\ud800"}', "line 1: .*unpaired surrogate"),
        ("a: 1\nb: 1e400", "1e400 is not a JSON number"),
        ("a: 1\nb: " + "9" * 5000, "the number has 5000 digits"),
        ('{"a": 1}\nnonsense', "line 2: .*neither JSON nor"),
        ("a: &a [*a]", "an alias refers to a value that contains the alias; remove the alias"),
        ("a: .nan", ".nan is not a JSON number"),
        (
            "a: !!binary aGk=",
            "'aGk=' has the YAML tag !!binary, which JSON does not support; put it in quotes, without a tag",
        ),
        ("a: !Ref b", "YAML tag '!Ref' is unknown; remove"),
        ("? [a, b]\n: c", "a key must be a string"),
        ("a: " + "[" * 20_000, "not YAML|nested too deeply"),
        ('{"a":' * 20_000, "not YAML|nested too deeply"),
        ("a: \x07", "line 1: not YAML: .*control characters"),
        ("%YAML 1.1\n---\na: 1", "line 1: not YAML"),
        ("a: 1\n...\nb: 2", "line 3: not YAML"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        loaded(text)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("!!bool abc", "'abc' cannot be read as !!bool; put it in quotes, without a tag"),
        ('!!bool ""', "'' cannot be read as !!bool"),
        ("!!int abc", "'abc' cannot be read as !!int"),
        ('!!int ""', "'' cannot be read as !!int"),
        ('!!int "-"', "'-' cannot be read as !!int"),
        ("0x_", "'0x_' cannot be read as !!int"),
        ("!!float abc", "'abc' cannot be read as !!float"),
        ('!!float ""', "'' cannot be read as !!float"),
        ("!!float [1]", "a list has the YAML tag !!float, but is not one value; remove the tag"),
        (f"!!int [{'1, ' * 500}]", "a list has the YAML tag !!int, but is not one value"),
        ("!!str {a: b}", "a mapping has the YAML tag !!str, but is not one value"),
        ("!!map a", "'a' has the YAML tag !!map, but is not a mapping; remove the tag"),
        ("!!seq a", "'a' has the YAML tag !!seq, but is not a list; remove the tag"),
        ("!!timestamp abc", "'abc' has the YAML tag !!timestamp, which JSON does not support; put it in quotes"),
        ("!!timestamp 2020-99-99", "'2020-99-99' has the YAML tag !!timestamp"),
        ("!!timestamp 2020-01-01", "'2020-01-01' has the YAML tag !!timestamp"),
        ("!!binary aGk=", "'aGk=' has the YAML tag !!binary"),
        ("!!set {a}", "a mapping has the YAML tag !!set, which JSON does not support; remove the tag"),
        ("!!omap [a: 1]", "a list has the YAML tag !!omap"),
        ("!!pairs [a: 1]", "a list has the YAML tag !!pairs"),
        ("1e400", "1e400 is not a JSON number"),
    ],
)
@pytest.mark.parametrize("place", ["a: 1\nb: {}", "a: 1\nb: [{{c: {}}}]", "a: 1\nb: &x {{c: {}}}\nd: {{<<: *x}}"])
def test_a_value_that_is_not_what_its_tag_says_is_refused_where_it_stands(place: str, value: str, says: str) -> None:
    with pytest.raises(Misplaced) as error:
        loaded(place.format(value))
    assert (error.value.line, error.value.message.startswith(says)) == (1, True), error.value.message


@given(
    st.sampled_from(
        ["null", "bool", "int", "float", "str", "binary", "timestamp", "set", "omap", "pairs", "seq", "map"]
    ),
    st.text("-+0123456789abx_:.eyn ", max_size=8),
)
def test_any_tag_at_any_text_is_read_or_refused_where_it_stands(tag: str, text: str) -> None:
    try:
        loaded(f"a:\n- !!{tag} '{text}'")
    except Misplaced as error:
        assert error.line == 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<<: {kind: Pod}", "Pod"),
        ("<<: {kind: Pod}\nkind: Job", "Job"),
        ("<<: [{a: 1}, {kind: Pod}, {kind: Job}]", "Pod"),
        ("<<: [{<<: {kind: Pod}}, {kind: Job}]", "Pod"),
        ("a: &x {kind: Pod}\n<<: *x", "Pod"),
        ('"<<": {kind: Pod}', ""),
        ("<<: Pod", ""),
        ("&x\n<<: *x", ""),
        ("kind: [Pod]", ""),
    ],
)
def test_the_kind_is_found_where_it_is_merged_in(text: str, kind: str) -> None:
    (document,) = split(text)
    assert document.top("kind") == kind


def test_merges_that_multiply_are_looked_through_once() -> None:
    more = "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 60))
    (document,) = split(f"a0: &a0 {{x: 1}}\n{more}<<: *a59\n")
    assert document.top("kind") == ""


def test_aliases_that_multiply_are_refused_quickly() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    with pytest.raises(RequestError, match="more than 1,000,000 values"):
        loaded(bomb)


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(RequestError, match="line 2: byte 0xff is not UTF-8"):
        read(b"a: 1\n\xff\xfe")
    with pytest.raises(RequestError, match=r"line 2: .*NUL byte"):
        read(b"a: 1\n\0")


def test_rewriting_keeps_separator_comments_and_line_ends() -> None:
    (document,) = split("---\r\n# why\r\na: 1\r\n")
    assert document.render([{"op": "replace", "path": "/a", "value": 2}], {"a": 2}) == "---\r\n# why\r\na: 2\r\n"
    (inline,) = split("--- {a: 1}\n")
    assert inline.render([{"op": "replace", "path": "/a", "value": 2}], {"a": 2}) == "--- {a: 2}\n"
    (scalar,) = split('\n{"a": 1}')
    assert scalar.render([{"op": "replace", "path": "/a", "value": 2}], {"a": 2}) == '\n{\n  "a": 2\n}\n'


def test_strings_other_readers_would_take_for_something_else_are_quoted() -> None:
    text = dump({"a": ["2020-01-01", "12:30:45", "y", "1e3", "0o17", "plain", "a\nb"]})
    assert yaml.safe_load(text) == {"a": ["2020-01-01", "12:30:45", "y", "1e3", "0o17", "plain", "a\nb"]}
    assert "- plain\n" in text
    assert math.isclose(1000.0, loaded("a: 1e3")[0]["a"])  # type: ignore[index]
