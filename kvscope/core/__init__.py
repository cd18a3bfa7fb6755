"""What every room shares: units, errors, files, traces, hits, runs, compiled kernels."""
