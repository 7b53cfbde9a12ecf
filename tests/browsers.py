"""Pages in headless Chromium, for tests marked `browser`."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
    "--disable-component-update", "--disable-sync",
]


def opened(url: str, folder: Path, *options: str) -> str:
    """Open a page and return its document as text, once its scripts have run."""
    assert CHROMIUM is not None
    return subprocess.run(
        [CHROMIUM, *OPTIONS, f"--user-data-dir={folder / 'profile'}", *options, "--dump-dom", url],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout


def photographed(url: str, path: Path, width: int, height: int, *options: str) -> None:
    """Write a picture of a page as PNG; a phone's width needs the page's own viewport, as in a frame."""
    assert CHROMIUM is not None
    subprocess.run(
        [CHROMIUM, *OPTIONS, f"--user-data-dir={path.parent / 'profile'}", f"--window-size={width},{height}",
         "--hide-scrollbars", f"--screenshot={path}", *options, url],
        capture_output=True, timeout=120, check=True,
    )


def answer_of(document: str) -> Any:
    """Return what a page's script put into its title as JSON."""
    found = re.search(r"<title>(.*?)</title>", document, re.DOTALL)
    assert found is not None
    return json.loads(html.unescape(found[1]))
