"""Where batch scripts of satellites begin, whichever release of flexo has written them.

Another release may be installed by the time that one starts. Run by its path, without site packages: standard
library only.
"""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "platforms" / "slurm" / "satellite_script.py"

if __name__ == "__main__":
    runpy.run_path(str(SCRIPT), run_name="__main__")
