"""``gpu-share annotations``."""

import json

import pytest

from gpushare.annotation_table import TABLE
from gpushare_cli.main import main


def test_every_key_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["annotations"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "KEY"
    assert [line.split()[0] for line in lines] == [key for row in TABLE for key in row.keys]
    line = next(each for each in lines if each.startswith("gpu-share.io/grace-period "))
    assert line.split() == ["gpu-share.io/grace-period", "namespace", "duration", "5s", "webhook,", "enforcer"]


def test_json_has_the_whole_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["annotations", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len(TABLE)
    assert rows[0] == {
        "keys": ["gpu-share.io/memory", "memory.gpu-share.io/<container>"],
        "object": "pod",
        "label": False,
        "value": "memory",
        "examples": ["4Gi"],
        "default": "default-memory of the namespace",
        "readBy": ["webhook", "enforcer", "admission policy"],
        "meaning": "GPU memory that each container with a share reserves",
        "message": "'?' is not a quantity of memory; write for example 4Gi or 512Mi (suffixes Mi, Gi, Ti, M, G, T)",
    }
