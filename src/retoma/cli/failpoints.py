"""`retoma failpoints`: the places where a test can make a process die."""

from __future__ import annotations

import click

from retoma.cli.options import example, json_option
from retoma.cli.printing import print_json, print_table
from retoma.failpoints import Failpoint


@click.command(epilog=example("RETOMA_FAILPOINT=accept.committed retoma serve", "retoma failpoints --json"))
@json_option
def failpoints(*, as_json: bool) -> None:
    """List the failpoints, for tests.

    RETOMA_FAILPOINT=NAME[@N][=kill|error|pause] acts at the N-th passing of NAME; without more it is the first, and
    SIGKILL to the own process.
    """
    if as_json:
        print_json([{"name": point.label, "meaning": point.sentence} for point in Failpoint])
    else:
        print_table(("NAME", "WHAT IS TRUE THERE"), [(point.label, point.sentence) for point in Failpoint])
