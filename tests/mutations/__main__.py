"""`python -m tests.mutations`: carries out every sabotage and says who noticed; fails if one went unnoticed."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

from tests.mutations.catalog import SABOTAGES
from tests.mutations.gate import Outcome, attempt


def told(outcome: Outcome) -> str:
    noticed = ", ".join(name.rpartition("::")[2] or name for name in outcome.noticed_by)
    return f"{outcome.seconds:6.1f} s  {outcome.sabotage.name}: {noticed if outcome.caught else 'NOBODY NOTICED'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="those whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    options = parser.parse_args()
    wanted = [one for one in SABOTAGES if options.only in one.name]
    unnoticed: list[Outcome] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(attempt, one) for one in wanted]):
            outcome = done.result()
            print(told(outcome), flush=True)  # noqa: T201 - a command line prints
            if not outcome.caught:
                unnoticed.append(outcome)
                print(outcome.output[-2_000:], file=sys.stderr)  # noqa: T201
    print(f"{len(wanted) - len(unnoticed)} of {len(wanted)} sabotages were noticed")  # noqa: T201
    raise SystemExit(bool(unnoticed))


if __name__ == "__main__":
    main()
