"""One file per command of the `corten` program; each imports what is heavy only when it runs."""
