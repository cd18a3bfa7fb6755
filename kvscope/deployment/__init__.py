"""The deployment: GPU, model and engine, with the KV pool and the latency that follow."""
