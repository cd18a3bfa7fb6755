"""Use cases: what the command line, the dashboard and the Python API call."""
