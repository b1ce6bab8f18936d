"""Tables of scores for pandas."""

from collections.abc import Mapping
from typing import Any

from kscout.errors import ConfigError


def data_frame(columns: Mapping[str, object]) -> Any:  # noqa: ANN401 - pandas is optional
    """Return columns as a `pandas.DataFrame`."""
    try:
        import pandas as pd  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            "to_pandas needs pandas, which is not installed; pip install pandas"
        ) from error
    return pd.DataFrame(dict(columns))
