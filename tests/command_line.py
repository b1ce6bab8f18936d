"""Commands as users type them, without waiting for a new process."""

from typer.testing import CliRunner

from kscout.apps.cli import app


def kscout(*words: object) -> str:
    """Run a command that succeeds, and return what it printed; what it raises comes through."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout
