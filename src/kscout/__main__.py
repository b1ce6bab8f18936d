"""The entry of `kscout` and `python -m kscout`, which a signal may end at any time."""

import signal


def main() -> None:
    """Run the command line; Ctrl-C ends it silently before it is imported and after it is done."""
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    _end_silently(is_handled)
    from kscout.apps.cli import main as run

    if is_handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    finally:
        _end_silently(is_handled)


def _end_silently(is_handled: bool) -> None:
    if is_handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    main()
