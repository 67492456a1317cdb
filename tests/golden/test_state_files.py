"""Every golden file of a format is read by today's code; one of tomorrow is refused with a sentence, and stays."""

import json
from pathlib import Path
from typing import Any

import pytest

from enforcer.runtime import files
from gpushare import formats
from gpushare.errors import ConfigError, GpuShareError, NewerFormatError
from gpushare.formats import Format, version_of
from tests.golden.state_files import ALL, Golden

BY_NAME = {golden.name: golden for golden in ALL}
every_format = pytest.mark.parametrize("golden", ALL, ids=list(BY_NAME))


def of_tomorrow(golden: Golden) -> bytes:
    """Today's content under the next version."""
    content = {"version": golden.format.version + 1, **_without_version(golden.written)}
    separators = (",", ":") if golden.name == "audit-record" else None
    return json.dumps(content, separators=separators).encode() + b"\n"


def _without_version(data: bytes) -> dict[str, Any]:
    return {key: value for key, value in json.loads(data).items() if key != "version"}


def refusal(golden: Golden, data: bytes) -> str | None:
    """Return the sentence with which a file is refused, empty where it is passed over; ``None``: it was read."""
    try:
        found = golden.read(data)
    except GpuShareError as error:
        return error.message
    return "" if found is None else None


def test_every_format_has_golden_files() -> None:
    assert {golden.format for golden in ALL} == {each for each in vars(formats).values() if isinstance(each, Format)}


@every_format
def test_every_version_that_was_written_is_read(golden: Golden) -> None:
    assert golden.files
    for file in golden.files:
        assert refusal(golden, file.read_bytes()) is None, file.name


@every_format
def test_the_newest_golden_file_is_what_is_written_and_begins_with_its_version(golden: Golden) -> None:
    newest = golden.files[-1]
    assert newest.read_bytes() == golden.written, "run `make golden`; it adds a file beside those that were kept"
    assert version_of(golden.written) == golden.format.version
    if golden.format.marked:
        assert next(iter(json.loads(golden.written))) == "version"


@every_format
def test_a_file_of_tomorrow_is_refused(golden: Golden) -> None:
    data = of_tomorrow(golden)
    sentence = refusal(golden, data)
    assert sentence is not None
    with pytest.raises(NewerFormatError) as refused:
        golden.format.check(data)
    assert f"version {golden.format.version + 1}" in refused.value.message
    assert golden.format.fix in refused.value.message
    assert sentence == "" or golden.format.fix in sentence


@every_format
def test_a_file_of_tomorrow_is_not_overwritten_by_todays(golden: Golden, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(of_tomorrow(golden))
    with pytest.raises(NewerFormatError):
        files.replace(file, golden.written)
    assert file.read_bytes() == of_tomorrow(golden)
    files.replace(file, golden.written, report=True)
    assert file.read_bytes() == golden.written


def test_a_version_before_the_oldest_and_none_where_there_has_to_be_one_are_refused() -> None:
    kept = Format("the file", 5, 3)
    for data in (b'{"version": 2}', b"{}", b'{"version": "5"}', b'{"other": 1, "version": 5}', b""):
        with pytest.raises(ConfigError) as refused:
            kept.check(data)
        assert not isinstance(refused.value, NewerFormatError)
    for data in (b'{"version": 3}', b'{"version":5,"a":1}', b'{\n "version": 4,\n "a": 1}'):
        kept.check(data)


def test_the_version_is_found_in_front_of_a_content_of_another_grammar() -> None:
    assert version_of(b'{"version": 7, \xff\xfe' + bytes(100)) == 7
