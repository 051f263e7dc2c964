"""Which expressions of a file are about the rank of a process, and which about the number of processes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from horovod_elastic.script_check.sources import Source

_ARITHMETIC = ("int", "max", "min", "len", "float", "str")


@dataclass(frozen=True, slots=True)
class _Quantity:
    """What expressions may be about, and how scripts get at it."""

    names: re.Pattern[str]
    functions: tuple[str, ...]
    variables: tuple[str, ...]
    """Variables of the environment."""


_RANK = _Quantity(
    re.compile(r"(global|local|dist|ddp|node|process|my|cur(rent)?)?_?rank(_id)?|process_index"),
    ("get_rank", "rank", "local_rank"),
    ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK"),
)
_SIZE = _Quantity(
    re.compile(r"(dist|ddp|global)?_?world(_?size)?|num_replicas|(n|num)_?(ranks|gpus|processes)|n_?procs?"),
    ("get_world_size", "size", "local_size"),
    ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "OMPI_COMM_WORLD_SIZE"),
)


class Ranks:
    """Tells what expressions of a file are about: by names, and by what is assigned to them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._rank: set[str] = set()
        self._size: set[str] = set()
        assigned = list(_assignments(source.tree))
        for _ in range(4):  # a chain of assignments is rarely longer
            for name, value in assigned:
                if self.is_rank(value):
                    self._rank.add(name)
                if self.is_size(value):
                    self._size.add(name)

    def is_rank(self, expression: ast.AST | None) -> bool:
        """Whether the expression is computed from the rank."""
        return self._about(expression, _RANK, self._rank)

    def is_size(self, expression: ast.AST | None) -> bool:
        """Whether the expression is computed from the number of processes."""
        return self._about(expression, _SIZE, self._size)

    def asks_for_size(self, expression: ast.AST | None) -> bool:
        """Whether the expression is nothing but a question for the number of processes."""
        while isinstance(expression, ast.Call) and self._source.full(expression.func) == "int":
            expression = expression.args[0] if expression.args else None
        match expression:
            case ast.Subscript():
                return self._about(expression, _SIZE, set())
            case ast.Call():
                return self._tells(expression, _SIZE)
        return False

    def _about(self, node: ast.AST | None, quantity: _Quantity, assigned: set[str]) -> bool:
        match node:
            case ast.Name(id=name):
                return name in assigned or bool(quantity.names.fullmatch(name))
            case ast.Attribute(attr=name):
                return bool(quantity.names.fullmatch(name))
            case ast.Subscript(value=value, slice=key):
                return self._source.full(value) == "os.environ" and _text(key) in quantity.variables
            case ast.Call() if self._tells(node, quantity):
                return True
        return any(self._about(each, quantity, assigned) for each in self._operands(node))

    def _tells(self, call: ast.Call, quantity: _Quantity) -> bool:
        """Whether this call asks for the quantity."""
        name = self._source.full(call.func)
        if name in ("os.environ.get", "os.getenv"):
            return bool(call.args) and _text(call.args[0]) in quantity.variables
        last = name.rpartition(".")[2]
        return last == quantity.functions[0] or (name.startswith("horovod.") and last in quantity.functions)

    def _operands(self, node: ast.AST | None) -> Sequence[ast.expr]:
        """The parts that the value of an expression is computed from."""
        match node:
            case ast.BinOp(left=left, right=right):
                return left, right
            case ast.UnaryOp(operand=operand):
                return (operand,)
            case ast.IfExp(body=body, orelse=orelse):
                return body, orelse
            case ast.BoolOp(values=values):
                return values
            case ast.Call(func=called, args=arguments) if self._source.full(called) in _ARITHMETIC:
                return arguments
        return ()


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _assignments(tree: ast.Module) -> Iterable[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from pairs(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield from pairs(node.target, node.value)


def pairs(target: ast.expr, value: ast.expr) -> Iterable[tuple[str, ast.expr]]:
    """The names that an assignment binds, each with its value, as far as both are written out."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, its in zip(target.elts, value.elts, strict=False):
            yield from pairs(each, its)
