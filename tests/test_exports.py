"""Imports on first use stand for what they import, also in annotations and checks of types."""

import subprocess
import sys
from pathlib import Path

MODULE = """
from kscout.exports import lazily

with lazily():
    import decimal
    from decimal import Decimal, getcontext
    from xml import dom
    from importlib import missing

def doubled(value: Decimal | int) -> Decimal:
    return Decimal(value) * 2
"""

CHECKS = """
import sys
import lazy
assert "decimal" not in sys.modules and "xml.dom" not in sys.modules
assert str(lazy.doubled(3)) == "6"
assert isinstance(lazy.doubled(3), lazy.Decimal) and not isinstance(3, lazy.Decimal)
assert issubclass(sys.modules["decimal"].Decimal, lazy.Decimal)
assert lazy.decimal.MAX_PREC and lazy.getcontext().prec and lazy.dom.Node.ELEMENT_NODE == 1
import fractions
assert fractions.Fraction is not lazy.Decimal and isinstance(fractions, type(sys))
try:
    lazy.missing.anything
except ModuleNotFoundError as error:
    assert "importlib.missing" in str(error)
else:
    raise AssertionError("a missing name was found")
"""


def test_a_postponed_import_stands_for_its_class_function_or_module(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text(MODULE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", CHECKS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
