"""Work of the benchmarks that runs in a fresh process: each module prints one JSON document."""
