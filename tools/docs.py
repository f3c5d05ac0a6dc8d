"""Writes the generated pages of docs/; `--check` writes nothing and fails when one is stale."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tools import commands_page, http_page, requirements_page, settings_page, state_machine_page
from tools.tree import ROOT

PAGES: dict[str, Callable[[], str]] = {
    "docs/commands.md": commands_page.render,
    "docs/http.md": http_page.render,
    "docs/requirements.md": requirements_page.render,
    "docs/settings.md": settings_page.render,
    "docs/state-machine.md": state_machine_page.render,
}


def stale_pages(root: Path = ROOT) -> list[str]:
    """The pages that differ from what they would be if they were written now."""
    return [page for page in PAGES if not (root / page).exists() or (root / page).read_text() != PAGES[page]()]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is stale")
    stale = stale_pages()
    if parser.parse_args().check:
        for page in stale:
            print(f"{page} is stale; run `make docs`.", file=sys.stderr)
        raise SystemExit(bool(stale))
    for page in stale:
        (ROOT / page).parent.mkdir(exist_ok=True)
        (ROOT / page).write_text(PAGES[page]())
        print(f"wrote {page}")


if __name__ == "__main__":
    main()
