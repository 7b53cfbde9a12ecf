"""The page about many devices runs and shows what it says, its sections one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from pages import ON_SEVERAL, PAGES, blocks, run_section


@pytest.mark.parametrize("page", [page for page in PAGES if page.name in ON_SEVERAL], ids=lambda page: page.stem)
def test_the_page_is_true(page):
    namespace: dict[str, Any] = {"__name__": "page"}
    for section in dict.fromkeys([block.section for block in blocks(page) if block.language == "python"]):
        run_section(page, section, namespace)
