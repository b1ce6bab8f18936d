"""Imports point down only, and names on one line never import each other."""

import ast
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "kscout"

# From the roof to the ground; docs/developers/architecture.md explains the order.
LAYERS = [
    {"__main__"},
    {"apps.cli"},
    {"apps.demo"},
    {"apps.report", "apps.serve"},
    {"apps.campaign", "apps.export", "apps.player"},
    {"evaluation", "gym_env"},
    {"training"},
    {"assemble", "contracts", "runs"},
    {"data", "reconstruction", "policies", "acquisition"},
    {"compatibility"},
    {"core", "metrics", "figures", "weights", "provenance"},
    {"physics", "config"},
    {"zoo"},
    {"names", "pickles", "shapes"},
    {"kernels", "files", "compressed", "columns", "layers", "randomness", "device", "children"},
    {"errors", "exports", "json_types"},
]
HEIGHT = {name: -depth for depth, names in enumerate(LAYERS) for name in names}


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return the imports and calls of a file's syntax tree."""
    kinds = ast.Import | ast.ImportFrom | ast.Call
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


def part_of(names: Sequence[str]) -> str:
    """Return the part of kscout that a module belongs to; each application is one."""
    return ".".join(names[: 2 if names[0] == "apps" else 1]).removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    """Return the parts of kscout that a file imports, wherever the import stands."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "relative imports hide the direction"
            path = node.module.split(".")
            if path in (["kscout"], ["kscout", "apps"]):
                found.update(part_of([*path[1:], alias.name]) for alias in node.names)
            elif path[0] == "kscout":
                found.add(part_of(path[1:]))
        elif isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
            found.update(part_of(path[1:]) for path in modules if path[0] == "kscout" != path[-1])
    return found


def source_files() -> list[Path]:
    return sorted(
        path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem != "__init__"
    )


def test_imports_point_down() -> None:
    for path in source_files():
        own = part_of(path.relative_to(SOURCE).parts)
        for other in imported_modules(path) - {own, "__version__"}:
            assert other in HEIGHT, f"{path}: kscout.{other} has no floor in this house"
            assert HEIGHT[other] < HEIGHT[own], f"{path}: {own} may not import {other}"


def test_nothing_imports_a_baseline() -> None:
    """Tables of names find them, so that the package can be removed with its entries."""
    package = SOURCE / "training" / "baselines"
    for path in source_files():
        imports = [x for x in nodes(path) if isinstance(x, ast.Import | ast.ImportFrom)]
        if package not in path.parents:
            assert not any("training.baselines" in ast.unparse(x) for x in imports), path


def test_only_these_files_have_acquisition_loops_of_their_own() -> None:
    """All others use `Acquisition`."""
    loops = {
        *("training/algorithms/greedy.py", "training/algorithms/non_greedy.py"),
        *("training/fixed_order.py", "training/baselines/search_trees.py"),
        "training/baselines/straight_through.py",
    }
    # States of a replay buffer, and single states for an ONNX file.
    single = {
        *("training/algorithms/dense.py", "training/baselines/episodic.py"),
        "apps/export/onnx.py",
    }
    steps = {"start", "start_from", "acquire", "branch"}
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in source_files()
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and path.parent.name != "acquisition"
        and (
            getattr(node.func, "id", "") == "shown_to"
            or (
                isinstance(node.func, ast.Attribute)
                and node.func.attr in steps
                and ast.unparse(node.func.value).endswith("simulator")
            )
        )
    }
    assert found == loops | single


def test_every_part_has_a_floor() -> None:
    parts = {part_of(path.relative_to(SOURCE).parts) for path in SOURCE.rglob("*.py")}
    assert parts - {"__init__", "apps.__init__"} <= set(HEIGHT)


def test_files_stay_below_their_ceiling() -> None:
    root = SOURCE.parents[1]
    paths = [path for room in ("src", "tests", "lab") for path in root.glob(f"{room}/**/*.py")]
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    # An analysis, from its computation to its figures, and an algorithm are one file each.
    long = {path: length for path, length in lengths.items() if length > 400}
    whole = ("analyses", "algorithms")
    assert {x: n for x, n in long.items() if n > 800 or x.parent.name not in whole} == {}


def test_nothing_is_printed_through_markup() -> None:
    """Each console and each column of text says that it reads none."""
    unmarked = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in source_files()
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in ("Console", "TextColumn")
        and not any(key.arg == "markup" for key in node.keywords)
    ]
    assert unmarked == []


def test_every_file_of_tests_has_a_name_of_its_own() -> None:
    """Pytest imports them by name alone, and collects none where two are called the same."""
    paths = sorted(Path(__file__).parent.rglob("test_*.py"))
    own = {path.name: path for path in paths}
    assert [path for path in paths if own[path.name] != path] == []


def test_public_classes_have_names_of_their_own_and_files_are_rarely_namesakes() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if path.stem != "__init__"]
    pattern = re.compile(r"^ *class ([A-Za-z]\w*)", re.MULTILINE)
    classes = Counter(
        name for path in SOURCE.rglob("*.py") for name in pattern.findall(path.read_text())
    )
    files = Counter(path.name for path in paths)
    assert [name for name, count in classes.items() if count > 1] == []
    assert [name for name, count in files.items() if count > 2] == []
