"""Pages in a real Chromium: what its console says, and pictures of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

WIDTHS = {"phone": (390, 844), "tablet": (820, 1180), "desktop": (1440, 900)}
"""Width and height of the window, in pixels."""


def chromium() -> str:
    """The program; skips the test if there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    return found


def console_of(page: Path, folder: Path, size: tuple[int, int], picture: Path | None = None, dark: bool = False) -> str:
    """What the console says while `page` is shown `size` large; `folder`: where files may lie meanwhile.

    It is shown in a frame of another page, since Chromium's own windows are at least 500 pixels wide.
    """
    width, height = size
    frame = folder / "frame.html"
    style = f"border: 0; width: {width}px; height: {height}px"
    frame.write_text(f'<body style="margin: 0"><iframe src="{page.as_uri()}" style="{style}"></iframe>')
    asked = [f"--screenshot={picture}"] if picture else ["--dump-dom"]
    command = [
        *(chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"),
        *(f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", f"--window-size={width},{height}"),
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
        *asked,
        frame.as_uri(),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return "\n".join(line for line in run.stderr.splitlines() if "CONSOLE" in line)
