"""The command line: one file per command, and how they talk to the terminal."""
