"""Is it true? A trace replayed on a real engine, measurement beside the simulator's prediction."""
