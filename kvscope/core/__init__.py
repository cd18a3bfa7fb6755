"""Shared by all packages of kvscope: units, errors, files, traces, hits, runs, compiled kernels."""
