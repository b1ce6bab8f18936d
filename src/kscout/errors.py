"""Errors, each with a one-sentence message: what was found, what was expected, what to do."""


class KScoutError(Exception):
    """Base class of all errors that kscout raises deliberately."""


class DataError(KScoutError):
    """A file, volume or store has unexpected content."""


class ConfigError(KScoutError):
    """A setting, name or argument is invalid."""


class WeightsError(KScoutError):
    """A checkpoint or weights file cannot be used for the request."""


class RunError(KScoutError):
    """A run failed, or its folder is missing, incomplete or belongs to another run."""


def unknown_name(kind: str, name: str, choices: list[str]) -> ConfigError:
    """Return the error for an unknown name, with the list of known names."""
    return ConfigError(f"unknown {kind} {name!r}; choose one of: {', '.join(sorted(choices))}")
