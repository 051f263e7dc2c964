"""A real YARN cluster on one machine, for tests, demos and trying things (docs/howto/yarn.md).

lab = bring_up_yarn(YarnLabSpec(name="mine"))
lab.kill("rm")
lab.start("rm")
lab.down()
"""

from flexo_lab.yarn.bringup import bring_up_yarn, wait_for_nodes
from flexo_lab.yarn.jars import why_unavailable
from flexo_lab.yarn.lab import YarnLab
from flexo_lab.yarn.spec import Protection, YarnLabSpec

__all__ = ["Protection", "YarnLab", "YarnLabSpec", "bring_up_yarn", "wait_for_nodes", "why_unavailable"]
