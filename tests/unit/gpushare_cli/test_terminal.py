import io

import pytest

from gpushare_cli.terminal import Colour, Terminal, diff, table
from gpushare_cli.words import counted


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Terminal.of(Tty()).colour
    assert not Terminal.of(io.StringIO()).colour
    assert Terminal.of(io.StringIO(), "always").colour
    assert not Terminal.of(Tty(), "never").colour


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_declined(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(variable, value)
    assert not Terminal.of(Tty()).colour


def test_symbols_have_a_stand_in_where_the_encoding_lacks_them() -> None:
    assert not Terminal.of(io.TextIOWrapper(io.BytesIO(), encoding="ascii")).unicode
    assert Terminal.of(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")).unicode


def test_tables_have_no_borders_and_no_blanks() -> None:
    assert table(["GPU", "MODEL"], [[0, None], [10, ""], [2, "A100"]]) == [
        "GPU  MODEL",
        "0    N/A",
        "10   N/A",
        "2    A100",
    ]


def test_a_diff_is_coloured_line_by_line() -> None:
    shown = diff("a\nb\n", "a\nc\n", ("x", "y"), Terminal(io.StringIO(), colour=True, unicode=True))
    assert f"{Colour.RED}-b\x1b[0m" in shown
    assert f"{Colour.GREEN}+c\x1b[0m" in shown
    assert " a" in shown


def test_one_of_a_kind_is_singular() -> None:
    assert [counted(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    assert [counted(number, "node", ("is", "are")) for number in (1, 2)] == ["1 node is", "2 nodes are"]
