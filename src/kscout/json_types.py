"""Types of what JSON and TOML files contain, and of what a training stores to continue."""

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object or a TOML table: its values are text, numbers, truth values, lists and objects."""

StateDict: TypeAlias = dict[str, Any]
"""What an algorithm stores to continue: tensors, numbers and other such dictionaries by name."""
