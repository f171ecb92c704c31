"""`blobfeed` in this process: a command with its arguments, and what it prints."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from blobfeed.cli import app


def run(*arguments: object, columns: int = 200) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})


def output_of(*arguments: object, columns: int = 200) -> str:
    """Return the standard output of a run that succeeds."""
    result = run(*arguments, columns=columns)
    assert result.exit_code == 0, result.output
    return result.stdout


def error_of(*arguments: object) -> str:
    """Return the one message on standard error of a run that fails."""
    result = run(*arguments)
    error = result.stderr.lstrip("\n")  # typer 0.19 writes an empty line before
    assert result.exit_code == 1, result.output
    assert error.startswith("blobfeed: error: ")
    assert error.count("blobfeed: error:") == 1
    assert "Traceback" not in error
    return error
