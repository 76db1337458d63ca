"""The program from its first moment: Ctrl-C is quiet before anything heavy is loaded."""

import os
import signal

__all__ = ["main"]


def main() -> None:
    """Run the program."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, _leave)
    from corten.cli.app import main as program

    program()


def _leave(*_: object) -> None:
    # Nothing is written yet; an exception could fall into the midst of an import, which would print it.
    os.write(2, b"corten: stopped; nothing partial was left\n")
    os._exit(130)


if __name__ == "__main__":
    main()
