"""A program that imports every module of the wheel for users, in an environment that a test has made."""

from __future__ import annotations

from collections.abc import Collection


def importing(left_out: Collection[str] = (), refused: Collection[str] = ()) -> str:
    """The program. It prints the number of flexo's modules that it has imported.

    `left_out`: modules that it does not import. `refused`: packages that are as if they were not installed.
    """
    return f"""
import importlib, pkgutil, sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name in {set(refused)!r}:
            raise ModuleNotFoundError(name + " is no requirement of users")
sys.meta_path.insert(0, Refusing())
import flexo, flexo_cli, flexo_protos, flexo_yarn
for package in (flexo, flexo_cli, flexo_protos, flexo_yarn):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name not in {set(left_out)!r}:
            importlib.import_module(module.name)
print(len([name for name in sys.modules if name.startswith("flexo")]))
"""
