"""Files are whole and valid, whatever is written to them."""

import json
import math
from pathlib import Path

import numpy as np

from kscout.files import write_json


def test_json_has_null_for_what_is_no_number(tmp_path: Path) -> None:
    value = {"a": [math.nan, 1.5, (np.float64("inf"), -math.inf)], "b": {"c": math.nan, "d": "NaN"}}
    write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text()
    found = json.loads(text, parse_constant=lambda word: f"not JSON: {word}")
    assert found == {"a": [None, 1.5, [None, None]], "b": {"c": None, "d": "NaN"}}
