"""What can go wrong, told to a user in one sentence: found, expected, what to do."""


class KScoutError(Exception):
    """The root of every error that kscout raises on purpose."""


class DataError(KScoutError):
    """A file, volume or store does not hold what it should."""


class ConfigError(KScoutError):
    """A setting, name or argument is not one that kscout knows."""


class WeightsError(KScoutError):
    """A checkpoint or weights file cannot be used as asked."""


class RunError(KScoutError):
    """A run failed on its way, or its folder is missing, incomplete or another run's."""


def unknown_name(kind: str, name: str, choices: list[str]) -> ConfigError:
    """Build the error for a name that is in no table, listing the names that are."""
    return ConfigError(f"unknown {kind} {name!r}; choose one of: {', '.join(sorted(choices))}")
