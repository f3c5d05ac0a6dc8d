"""Which files belong to the project."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_NOT_OURS = {"build", "dist", "htmlcov", "evidence", "__pycache__"}


def project_files() -> list[Path]:
    """Every file that is, or could be, committed; in an unpacked archive, every file outside hidden folders."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        found = {ROOT / name for name in listing.stdout.split("\0") if name}
    else:
        found = {path for path in ROOT.rglob("*") if not _hidden_or_built(path.relative_to(ROOT))}
    return sorted(path for path in found if path.is_file())


def _hidden_or_built(path: Path) -> bool:
    hidden = path.parts[0].startswith(".") and path.parts[0] != ".ci"
    return hidden or not _NOT_OURS.isdisjoint(path.parts)
