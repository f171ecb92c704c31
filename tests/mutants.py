"""`python -P -m tests.mutants`: small mistakes in the pure modules, one at a time, and which of them no test sees.

A hundred mutants, drawn by a seed over all places in all modules of MODULES: a constant one more or less, a comparison
or an operator exchanged, a condition turned round, operands swapped, a statement left out. Each is put into a copy of
the installed package, and the module's own pure tests run against it; one on which they fail, or hang, is found.

Not drawn are those that EQUIVALENT names, since they change nothing that matters; `strict=True` made false, which like
an assertion says what holds anyway; and one more or less in a module's named constants (`MAX_ASSIGNED = 2`).
Such a number was tuned by measuring and has no right value, so a test could only repeat it; what the code does with it
is drawn like everything else.

The draw goes by a hash of what each mutant says. So a change of a module changes only those mutants that it touches.
Takes about ten minutes; `--only` runs those of the draw that lie in some modules, and `--count 0` draws all.

    python -P -m tests.mutants [--count 100] [--seed 1] [--only MODULE …]
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import blobfeed

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = Path(blobfeed.__file__).resolve().parent
_AT_ONCE = 2
_PATIENCE_S = 240.0
_HANGS_S = 40
"""What no single test takes, on a machine whose cores are all busy."""
_WANTED = 0.95

MODULES: dict[str, tuple[str, ...]] = {
    "workers/assembly/ledger.py": (
        "workers/assembly/test_ledger.py",
        "workers/assembly/test_interleavings.py",
    ),
    "workers/assembly/assembly.py": (
        "workers/assembly/test_assembly.py",
        "workers/assembly/test_task_size.py",
        "workers/assembly/test_interleavings.py",
    ),
    "workers/assembly/autoscale.py": ("workers/assembly/test_autoscale.py",),
    "workers/order/cut.py": ("workers/order/test_batches.py", "workers/plan/test_errors.py"),
    "workers/order/permutation.py": ("workers/order/test_permutation.py", "supplies/test_published_orders.py"),
    "supplies/walk.py": ("workers/plan/test_ordered_schedule.py", "workers/plan/test_errors.py"),
    "workers/order/rounds.py": (
        "workers/plan/test_ordered_schedule.py",
        "workers/plan/test_stream_schedule.py",
        "workers/assembly/test_interleavings.py",
    ),
    "supplies/drawn.py": (
        "workers/plan/test_ordered_schedule.py",
        "workers/plan/test_sampled_plan.py",
        "supplies/test_samplers.py",
        "readers/test_samplers.py",
        "readers/test_locate.py",
    ),
    "supplies/chunk_order.py": (
        "supplies/test_chunk_order.py",
        "supplies/test_epoch_order.py",
        "supplies/test_published_orders.py",
        "workers/plan/test_errors.py",
    ),
    "supplies/computed.py": (
        "supplies/test_epoch_order.py",
        "workers/order/test_permutation.py",
        "supplies/test_published_orders.py",
        "workers/plan/test_plan.py",
        "workers/plan/test_errors.py",
    ),
    "supplies/mixed_order.py": (
        "supplies/test_mixed_order.py",
        "supplies/test_published_orders.py",
        "workers/plan/test_errors.py",
    ),
    "workers/order/sample_rng.py": ("workers/order/test_sample_rng.py",),
    "supplies/stream.py": (
        "workers/plan/test_stream_schedule.py",
        "workers/assembly/test_interleavings.py",
    ),
    "workers/plan/plan.py": (
        "workers/order/test_batches.py",
        "workers/plan/test_plan.py",
        "workers/plan/test_sampled_plan.py",
        "workers/plan/test_errors.py",
        "workers/assembly/test_assembly.py",
        "workers/plan/test_ordered_schedule.py",
        "workers/assembly/test_interleavings.py",
        "readers/test_batch_reader.py",
    ),
}

EQUIVALENT: dict[str, str] = {
    "supplies/computed.py: if not 0 <= position - block.start < len(block.samples):  →  "
    "if not 0 < position - block.start < len(block.samples):": (
        "the first position of a block computes the same block again"
    ),
    "supplies/mixed_order.py: due = np.concatenate([(np.arange(count) + 0.5) / count for count in draws])  →  "
    "due = np.concatenate([count / (np.arange(count) + 0.5) for count in draws])": (
        "the same spread from its end to its beginning, and it is the same from both"
    ),
    "supplies/mixed_order.py: length = common * -(-_LEAST_PATTERN // common) if common <= SORTED_LIMIT else "
    "SORTED_LIMIT  →  length = common * -(-_LEAST_PATTERN // common) if common < SORTED_LIMIT else SORTED_LIMIT": (
        "a pattern is as long either way"
    ),
    "supplies/chunk_order.py: in_longer = rank < self._longer * (self._window_chunks + 1)  →  "
    "in_longer = rank <= self._longer * (self._window_chunks + 1)": "both ways of counting agree on that chunk",
}
"""By what `Mutant.told` says, why the mutant is as good as the original."""

_ALIKE: dict[str, str] = {
    r"workers/order/sample_rng\.py: .*'buffer': \[0, 0, 0, 0\].*  →  .*'buffer': \[(?!0, 0, 0, 0\]).*": (
        "the position says that the buffer is used up"
    ),
    r"workers/order/sample_rng\.py: self\._counter = .*  →  self\._counter = \[0, 0, -?\d, -?\d\]": (
        "the upper words are set for each sample"
    ),
    r"supplies/(chunk|mixed)_order\.py: together = .*  →  together = max\([12], .*": (
        "how many windows or patterns are shuffled by one sort changes no order, but time and memory"
    ),
    r"supplies/chunk_order\.py: others\[short\] = 0  →  others\[short\] = 1": (
        "what the permutation says of them is not looked at"
    ),
    r"workers/assembly/ledger\.py: .*  →  (self\._next_task \+?= 2|return self\._next_task [+-] \d)": (
        "the number of a task needs only be another one each time"
    ),
    r"workers/assembly/autoscale\.py: (rows: int|busy_s: float) = 0(\.0)?  →  .*": "only differences are looked at",
    r"workers/assembly/autoscale\.py: if self\.wanted < number:  →  if self\.wanted <= number:": (
        "a trial is of another number of loaders"
    ),
    r"workers/assembly/ledger\.py: others = .*  →  others = 1 - .*": "only asked if it is zero",
    r"workers/assembly/autoscale\.py: is_long = .*  →  .*elapsed > _LONGEST_WINDOW_S": "no window lasts just so long",
    r"workers/assembly/autoscale\.py: enough = max\(1, .*  →  enough = max\(0, .*": "rows take more than no time",
    r"supplies/walk\.py: inner = .*  →  inner = .*runs\[-1\].*": "there is one run",
    r"supplies/walk\.py: return .*  →  return .*\[-1\].*": "there is one sample",
    r"workers/assembly/ledger\.py: self\.rows_per_task = 1 << 40  →  self\.rows_per_task = (1 << \d+|2 << 40)": (
        "more rows than any group has"
    ),
}


def why_equivalent(told: str) -> str:
    reasons = (reason for pattern, reason in _ALIKE.items() if re.fullmatch(pattern, told))
    return EQUIVALENT.get(told) or next(reasons, "")


@dataclass(frozen=True)
class Mutant:
    """The `node`-th of a module, and which of its changes; -1: the statement is left out."""

    module: str
    node: int
    change: int
    line: int
    before: str
    after: str

    @property
    def told(self) -> str:
        return f"{self.module}: {self.before}  →  {self.after}"


# ---- small mistakes

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.RShift: ast.LShift,
    ast.BitXor: ast.BitOr,
}
_SAYS = ast.Raise | ast.JoinedStr
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def _changes(node: ast.AST) -> Iterator[Callable[[], object]]:
    """What may be done to the node itself, each in place."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield lambda: setattr(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        number = node.value
        yield lambda: setattr(node, "value", number + 1)
        yield lambda: setattr(node, "value", number - 1)
    elif isinstance(node, ast.Compare):
        for other in _COMPARISONS.get(type(node.ops[0]), ()):
            yield partial(node.ops.__setitem__, 0, other())
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OPERATORS:
        yield lambda: setattr(node, "op", _OPERATORS[type(node.op)]())
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add | ast.Mult):
            yield lambda: node.__dict__.update(left=node.right, right=node.left)
    elif isinstance(node, ast.BoolOp):
        yield lambda: setattr(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        yield node.values.pop
    elif isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
        yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield (
            lambda: (
                setattr(node, "op", ast.UAdd())
                if isinstance(node.op, ast.USub)
                else setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
            )
        )
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        name = node.func
        yield lambda: setattr(name, "id", _CALLS[name.id])


def _removable(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant | ast.Yield | ast.YieldFrom)
    if isinstance(statement, ast.Assign):
        return not isinstance(statement.targets[0], ast.Name | ast.Tuple)
    return isinstance(statement, ast.AugAssign | ast.Continue | ast.Break)


def _walk(node: ast.AST, statement: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Every node that does something at run time, with its statement: no annotation, no message, no assertion."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, _SAYS | ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            around = child if isinstance(child, ast.stmt) else statement
            yield child, around
            yield from _walk(child, around)


def _is_named_constant(tree: ast.Module, node: ast.AST, statement: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(statement, ast.Assign) and statement in tree.body


def mutants_of(module: str) -> Iterator[Mutant]:
    tree = ast.parse((_PACKAGE / module).read_text())
    for number, (node, statement) in enumerate(_walk(tree, tree)):
        changes = range(0 if _is_named_constant(tree, node, statement) else len(list(_changes(node))))
        left_out = (-1,) if isinstance(node, ast.stmt) and _removable(node) else ()
        for change in (*changes, *left_out):
            line, before, after, _ = _changed(module, number, change)
            yield Mutant(module, number, change, line, before, after)


def _changed(module: str, number: int, change: int) -> tuple[int, str, str, ast.Module]:
    """The line, the first line of the statement before and after, and the whole module after."""
    tree = ast.parse((_PACKAGE / module).read_text())
    node, statement = list(_walk(tree, tree))[number]
    before, line = _head(statement), getattr(node, "lineno", 0)
    if change < 0:
        _replace(tree, node, ast.Pass())
        return line, before, "pass", tree
    list(_changes(node))[change]()
    return line, before, _head(statement), tree


def source_of(mutant: Mutant) -> str:
    *_, tree = _changed(mutant.module, mutant.node, mutant.change)
    return ast.unparse(ast.fix_missing_locations(tree))


def draw(every: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """`count` of them, 0 for all: the first in an order in which the place of each depends on nothing but itself."""
    before: Counter[str] = Counter()
    ranked = []
    for mutant in every:
        before[mutant.told] += 1
        rank = hashlib.sha256(f"{seed} {before[mutant.told]} {mutant.told}".encode()).hexdigest()
        ranked.append((rank, mutant))
    ranked.sort(key=lambda each: each[0])
    return [mutant for _, mutant in ranked[: count or None]]


def _head(statement: ast.AST) -> str:
    lines = ast.unparse(ast.fix_missing_locations(statement)).split("\n")
    return next(line for line in lines if not line.startswith("@"))


def _replace(tree: ast.Module, old: ast.AST, new: ast.stmt) -> None:
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list):
                value[:] = [new if child is old else child for child in value]


# ---- running the tests


def _run(mutant: Mutant, copies: SimpleQueue[Path]) -> bool:
    """Whether the tests see it."""
    folder = copies.get()
    path = folder / "blobfeed" / mutant.module
    right = path.read_text()
    path.write_text(source_of(mutant))
    try:
        seen = _tests_fail(MODULES[mutant.module], folder, _PATIENCE_S)
        if not seen:
            print(f"{mutant.module}:{mutant.line}: {mutant.before}  →  {mutant.after}", flush=True)
        return seen
    finally:
        path.write_text(right)
        copies.put(folder)


def _tests_fail(names: Iterable[str], folder: Path, patience_s: float) -> bool:
    tests = [str(_ROOT / "tests" / name) for name in names]
    options = ["-x", "-q", "-m", "", "-k", "not mistake", "-p", "no:cacheprovider"]
    options += ["--hypothesis-seed=1", "--hypothesis-profile=whole"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pytest", f"--timeout={_HANGS_S}", *options, *tests],
        cwd=_ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return process.wait(patience_s) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        process.kill()
        process.wait()


def _copies(folder: Path) -> SimpleQueue[Path]:
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(_AT_ONCE):
        shutil.copytree(_PACKAGE, folder / str(number) / "blobfeed", ignore=shutil.ignore_patterns("__pycache__"))
        copies.put(folder / str(number))
    return copies


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m tests.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="how many are drawn; 0 for all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=list(MODULES), choices=list(MODULES), metavar="MODULE")
    arguments = parser.parse_args(given)
    every = [mutant for module in MODULES for mutant in mutants_of(module)]
    if unknown := EQUIVALENT.keys() - {mutant.told for mutant in every}:
        print("EQUIVALENT names what is no mutant:", *unknown, sep="\n", file=sys.stderr)
        return 2
    counting = [mutant for mutant in every if not why_equivalent(mutant.told)]
    drawn = [mutant for mutant in draw(counting, arguments.count, arguments.seed) if mutant.module in arguments.only]
    with tempfile.TemporaryDirectory() as folder:
        copies = _copies(Path(folder))
        tests = {test for mutant in drawn for test in MODULES[mutant.module]}
        if tests and _tests_fail(tests, Path(folder, "0"), 10 * _PATIENCE_S):
            print("the tests fail without a mistake", file=sys.stderr)
            return 2
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = sum(threads.map(lambda mutant: _run(mutant, copies), drawn))
    print(f"{found} of {len(drawn)} found; {len(counting)} places, and {len(every) - len(counting)} change nothing")
    return int(found < _WANTED * len(drawn))


if __name__ == "__main__":
    sys.exit(main())
