"""Results as JSON: one object for one policy, an object by policy name for several."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from flexo_cli.site.simulation.asked import TO_OUTPUT
from flexo_simulation.results import SimulatedRun


def write_json(outcomes: Sequence[SimulatedRun], where: str) -> None:
    """Write the results into the file `where`, or to the output for -. Raises OSError."""
    objects = {outcome.policy: outcome.result.to_json() for outcome in outcomes}
    document = objects if len(outcomes) > 1 else next(iter(objects.values()))
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if where == TO_OUTPUT:
        sys.stdout.write(text)
    else:
        Path(where).write_text(text)
