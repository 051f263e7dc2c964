"""What reaches a terminal or a pipe: alignment, times, and nothing that steers."""

from __future__ import annotations

import io
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo_cli import main, output


class Terminal(io.StringIO):
    """An output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@given(st.text())
def test_no_text_keeps_a_control_or_direction_character(text: str) -> None:
    assert not {unicodedata.category(c) for c in output.printable(text)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(st.text(alphabet=st.characters(categories=["L", "N", "P"])))
def test_letters_of_any_language_stay_as_they_are(text: str) -> None:
    assert output.printable(text) == text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (86_400 * 3, "3 d"), (-5, "0 s")],
)
def test_ages_are_said_in_one_unit(seconds: int, said: str) -> None:
    assert output.ago(1_000_000, 1_000_000 + seconds) == said


def test_what_has_not_happened_is_never() -> None:
    assert output.ago(0) == "never"


def test_a_pipe_gets_one_line_a_row_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("A", "B"), [("1", "x" * 500), ("22", "y")], right=("A",))
    head, first, second = capsys.readouterr().out.splitlines()
    assert head == " A  B"
    assert first == " 1  " + "x" * 500
    assert second == "22  y"


def test_a_terminal_of_80_columns_is_not_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    output.print_table(("A", "B"), [("1", "word " * 50)])
    assert max(map(len, terminal.getvalue().splitlines())) <= 80
    assert "\x1b" not in terminal.getvalue()


def test_markup_in_a_name_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_line("[red]job[/red] :smile:")
    output.print_pairs([("name", "[bold]x")])
    assert capsys.readouterr().out == "[red]job[/red] :smile:\nname  [bold]x\n"


def test_json_is_ascii_whatever_the_names_hold(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"name": "\x1b\u202eé"})
    assert capsys.readouterr().out.isascii()


def test_a_name_that_the_terminal_cannot_show_is_escaped_and_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
        patched.setattr(sys, "argv", ["flexo", "--version"])
        with pytest.raises(SystemExit):
            main()
        output.print_line("job \u8a13\u7df4")
        sys.stdout.flush()
        said = raw.getvalue().decode()
    assert said.splitlines()[-1] == "job \\u8a13\\u7df4"
