"""Refuses to keep a SQLite file where its locks can't be trusted: on a network file system.

Two hosts that share such a file may both believe that they hold the lock, and corrupt it; the leases of instances are
counted on one machine's clock besides. PostgreSQL is the store for several hosts.
"""

from __future__ import annotations

from pathlib import Path

from retoma.errors import Refused

NETWORK = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "ocfs2", "gfs2",
        "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "fuse.rclone", "fuse.ceph-fuse",
    }
)  # fmt: skip
_MOUNTS = Path("/proc/self/mountinfo")


def require_local(path: Path, mounts: Path = _MOUNTS) -> None:
    """Raises Refused if `path` lies on a network file system; a system without mountinfo is believed."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    kind = _kind_of(path.resolve(), lines)
    if kind in NETWORK:
        raise Refused(
            f"{path} is on a network file system ({kind}), where SQLite's locks can't be trusted; "
            "choose a local folder with --data-dir, or PostgreSQL with --store"
        )


def _kind_of(path: Path, lines: list[str]) -> str:
    """The type of the file system whose mount point is the longest that leads to `path`; a later mount hides it."""
    best, kind = -1, ""
    for line in lines:
        fields, _, after = line.partition(" - ")
        point = Path(_unescaped(fields.split(" ")[4]))
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split(" ")[0]
    return kind


def _unescaped(text: str) -> str:
    """Spaces and the like stand as octal numbers in mountinfo."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
