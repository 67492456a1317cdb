import os
from pathlib import Path

import pytest

from enforcer.audit.log import FOLDER
from enforcer.kill.circuit_breaker import NAME
from gpushare_cli.main import main


def said(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> tuple[int, str]:
    code = main(["breaker", "--state", str(folder), *options])
    return code, capsys.readouterr().out.strip()


def test_it_says_whether_it_is_open_and_closes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / FOLDER).mkdir()
    assert said(capsys, tmp_path) == (0, "the breaker is closed")
    (tmp_path / NAME).write_text('{"time": "2026-01-02T03:04:05Z"}')
    code, text = said(capsys, tmp_path)
    assert code == 1
    assert text.startswith("the breaker is open since 2026-01-02T03:04:05Z")
    assert said(capsys, tmp_path, "--reset") == (0, "the breaker is closed; each container has a full budget")
    assert said(capsys, tmp_path, "--reset") == (0, "the breaker was not open")


@pytest.mark.parametrize("content", ["", "{}", "[]", "[" * 60_000, '{"time":"\\u001b[2J"}', None])
def test_whatever_the_file_says_it_is_open_and_the_terminal_is_not_steered(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        os.mkfifo(tmp_path / NAME)  # nobody writes to it, and nobody waits for that
    else:
        (tmp_path / NAME).write_text(content)
    code, text = said(capsys, tmp_path)
    since = r" since \x1b[2J" if content and "u001b" in content else ""
    assert code == 1
    assert text.startswith(f"the breaker is open{since}: the enforcer kills no container of this node; to close")


def test_a_folder_that_is_none_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for other in (tmp_path / "none", tmp_path):
        assert main(["breaker", "--state", str(other)]) == 2
        assert f"{other} is not a state directory; run this on a node" in capsys.readouterr().err
    (tmp_path / NAME).mkdir()
    assert main(["breaker", "--state", str(tmp_path), "--reset"]) == 1
    assert f"{NAME} cannot be read or removed: Is a directory" in capsys.readouterr().err
