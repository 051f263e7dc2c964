"""The start of a satellite's batch script, at the same path in all releases of flexo.

Another release may be installed by the time that the batch script starts. The script runs this file by its
path, without site packages, so the file uses the standard library only.
"""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "platforms" / "slurm" / "satellite_script.py"

if __name__ == "__main__":
    runpy.run_path(str(SCRIPT), run_name="__main__")
