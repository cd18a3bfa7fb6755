"""The command line: one file a command; stdout is data, everything else is stderr."""
