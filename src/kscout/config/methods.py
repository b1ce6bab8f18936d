"""Classes of settings by method: `training.method` of policies and joint trainings."""

from collections.abc import Callable
from typing import Any

from kscout.config.layers import Table
from kscout.errors import ConfigError
from kscout.names import ESTIMATORS, import_target
from kscout.names.table import EstimatorEntry
from kscout.names.table import Registry as Names

Methods = Names[EstimatorEntry]


def settings_class(method: str, methods: Methods = ESTIMATORS) -> type[Any]:
    """Return the class of the settings of an estimator, or of a sampler."""
    entry = methods[method]
    if entry.settings:
        return import_target(entry.settings, of="settings class")
    return methods.resolve(method).settings


def check_method(kind: type, method: str, methods: Methods) -> None:
    """Raise an error for settings of another method."""
    expected = methods[method].settings
    if expected not in ("", f"{kind.__module__}:{kind.__qualname__}"):
        raise ConfigError(
            f"{kind.__name__} has no method {method!r}; its settings are "
            f"{expected.replace(':', '.')}"
        )


def picked_settings(methods: Methods, default: str) -> Callable[[Table], type[Any]]:
    """Return a function that selects the class of settings of a table `[training]`."""

    def picked(table: Table) -> type[Any]:
        method = table.get("method", default)
        # Reading the table reports a method that does not exist.
        return settings_class(method if method in methods else default, methods)

    return picked
