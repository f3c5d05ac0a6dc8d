"""A SQLite file is refused on a network file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from retoma.errors import Refused
from retoma.store.filesystem import require_local

LINE = "{number} 1 0:{number} / {point} rw,relatime shared:1 - {kind} source rw"


def mountinfo(folder: Path, *mounts: tuple[str, str]) -> Path:
    """A file like /proc/self/mountinfo with these mount points and types."""
    lines = [
        LINE.format(number=number, point=point.replace(" ", "\\040"), kind=kind)
        for number, (point, kind) in enumerate(mounts)
    ]
    path = folder / "mountinfo"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.requirement("S-002")
@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_database_on_a_network_file_system_is_refused(kind: str, tmp_path: Path) -> None:
    mounts = mountinfo(tmp_path, ("/", "ext4"), ("/srv/shared data", kind))
    with pytest.raises(Refused, match=kind.replace(".", r"\.")):
        require_local(Path("/srv/shared data/retoma/retoma.db"), mounts)


def test_a_local_folder_below_or_beside_a_network_mount_is_fine(tmp_path: Path) -> None:
    mounts = mountinfo(tmp_path, ("/", "ext4"), ("/srv/net", "nfs"), ("/srv/net/disk", "xfs"))
    require_local(Path("/srv/net/disk/retoma.db"), mounts)
    require_local(Path("/srv/network/retoma.db"), mounts)


def test_the_mount_that_hides_an_earlier_one_counts(tmp_path: Path) -> None:
    mounts = mountinfo(tmp_path, ("/", "ext4"), ("/srv/net", "ext4"), ("/srv/net", "nfs"))
    with pytest.raises(Refused):
        require_local(Path("/srv/net/retoma.db"), mounts)


def test_this_machines_own_folders_are_local(tmp_path: Path) -> None:
    require_local(tmp_path / "retoma.db")
    require_local(tmp_path / "retoma.db", tmp_path / "no such file")
