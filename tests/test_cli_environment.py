"""Odd environments, full outputs and signals at any time end in one sentence, or do nothing."""

import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fuzz.forks import command, in_child
from kscout.apps.cli import app, check_environment, check_file_names, sentence_of
from kscout.apps.cli.evaluate import _table
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError
from website.command_line import commands


def test_figures_need_no_window() -> None:
    environment = {"MPLBACKEND": "junk"}
    check_environment(environment)
    assert environment == {"MPLBACKEND": "agg"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("SOURCE_DATE_EPOCH", "x"), ("WORLD_SIZE", "abc"), ("RANK", ""), ("LOCAL_RANK", "-1")],
)
def test_a_variable_that_is_no_number_is_rejected(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    code, told = command(["zoo"]), capsys.readouterr()
    assert code == 1 and not told.out
    assert told.err.startswith(f"error: {name} is {value!r}") and "unset it" in told.err


def test_words_that_are_no_modules_are_rejected() -> None:
    with pytest.raises(ConfigError, match="'a-b' is no module"):
        check_environment({"KSCOUT_USE": "json.tool, a-b"})


def test_junk_for_the_logs_of_torch_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LOGS", "junk")
    error = ValueError('Invalid log settings: junk\nFor more, try TORCH_LOGS="help"')
    assert sentence_of(error) == "TORCH_LOGS is 'junk'; correct it or unset it"


def test_names_that_the_locale_cannot_read_are_rejected() -> None:
    check_file_names(["run", "pl\u00e4ne"], "utf-8")
    check_file_names(["run"], "ascii")
    with pytest.raises(ConfigError, match=r"'pl\\xe4ne' cannot be read .* set PYTHONUTF8=1"):
        check_file_names(["run", "pl\u00e4ne"], "iso8859-1")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
@pytest.mark.parametrize(
    "words", [["zoo"], ["serve", "--reconstructor", "zero-filled", "--policy", "random"]]
)
def test_an_output_without_space_is_one_sentence(words: list[str], tmp_path: Path) -> None:
    def work() -> int:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        code = command(words)
        # What it could not print is printed no more.
        sys.stdout = Path(os.devnull).open("w")
        return code

    ended = in_child(work, tmp_path, tmp_path / "log")
    lines = ended.output.splitlines()
    assert ended.code == 1 and len(lines) == 1
    assert lines[0].startswith("error: No space left on device; free some space")


def test_ctrl_c_before_a_command_begins_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kscout.apps.cli.app", interrupted)
    assert command(["zoo"]) == 130
    assert capsys.readouterr().err == "interrupted; repeat the same command to resume\n"


def test_a_closed_output_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StoreWriter(tmp_path / "store", {"made by": "tests"}) as writer:
        writer.append("test", "a", np.ones((2, 9, 11), np.float32))
        writer.finish()
    monkeypatch.setattr(sys, "stdout", None)
    assert command(["data", "info", str(tmp_path / "store")]) == 0


_AT_IMPORT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "kscout.apps.cli":
            os.kill(os.getpid(), signal.{name})
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
from kscout.__main__ import main
sys.argv = ["kscout", "--version"]
main()
"""
_AT_THE_END = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(os.kill, os.getpid(), signal.{name})
from kscout.__main__ import main
sys.argv = ["kscout", "--version"]
main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("program", [_AT_IMPORT, _AT_THE_END])
def test_a_signal_before_or_after_a_command_is_silent(program: str, name: str) -> None:
    code = [sys.executable, "-c", program.format(name=name)]
    ended = subprocess.run(code, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (-signal.Signals[name], "")


def test_an_ignored_interrupt_stays_ignored() -> None:
    """As of a command that a shell starts in the background."""
    program = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    program += _AT_IMPORT.format(name="SIGINT").replace(
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n", ""
    )
    code = [sys.executable, "-c", program]
    ended = subprocess.run(code, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout.startswith("kscout ")


def test_a_table_keeps_names_whole_and_leaves_out_what_tells_nothing() -> None:
    line = {"reconstruction": "total-variation", "acceleration": 4.0, "ssim_low": None, "ssim": 0.5}
    out = StringIO()
    Console(file=out, width=80).print(_table([line, {**line, "reconstruction": "unet"}]))
    text = out.getvalue()
    assert "total-variation" in text and "reconstruction" in text and "acceleration" in text
    assert "low" not in text and "4.0" not in text and " 4 " in text and "0.5000" in text


def test_help_names_every_option_whole_on_a_narrow_terminal() -> None:
    for words, leaf in commands():
        if hasattr(leaf, "commands"):
            continue
        arguments = [*words.split()[1:], "--help"]
        shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"}).stdout
        names = [name for one in leaf.params for name in one.opts if name.startswith("-")]
        assert [name for name in names if name not in shown] == [], words
        assert max(map(len, shown.splitlines())) <= 80


def test_groups_tell_whole_sentences_of_their_commands() -> None:
    for words in ((), ("data",), ("analyze",)):
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).stdout
        assert "..." not in shown.partition("Commands:")[2] and "Commands:" in shown
