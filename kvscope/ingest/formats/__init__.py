"""Trace formats that kvscope reads: one file and one line in `registry` each."""
