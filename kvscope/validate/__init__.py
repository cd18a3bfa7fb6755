"""A trace replayed on a real engine: measurements next to the simulator's predictions."""
