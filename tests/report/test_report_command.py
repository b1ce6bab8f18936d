"""`kscout report` as typed."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kscout.apps.cli.evaluate import report
from synthetic_results import write_evaluation

pytestmark = pytest.mark.slow

app = typer.Typer()
app.command()(report)


def test_the_command_writes_page_and_figures(tmp_path: Path) -> None:
    results = write_evaluation(tmp_path / "base")
    out, figures = tmp_path / "r.html", tmp_path / "figures"
    arguments = [str(results), "-o", str(out), "--figures", str(figures), "--json"]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    written = json.loads(answer.stdout)["written"]
    assert str(out) in written and out.exists()
    names = {path.name for path in figures.iterdir()}
    assert {"ssim-by-step.png", "ssim-by-step.svg", "ssim-by-step.pdf"} <= names
