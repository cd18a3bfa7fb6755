"""The command line: modules by command; results go to stdout, everything else to stderr."""
