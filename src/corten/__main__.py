"""Start of the program: Ctrl-C prints no traceback while libraries are loaded."""

import os
import signal


def main() -> None:
    """Run the program."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # background jobs of a shell ignore it
        signal.signal(signal.SIGINT, _leave)
    from corten.cli.app import main as program

    program()


def _leave(*_: object) -> None:
    # Nothing is written yet; an exception during an import would print a traceback.
    os.write(2, b"corten: stopped; nothing partial was left\n")
    os._exit(130)


if __name__ == "__main__":
    main()
