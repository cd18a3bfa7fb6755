"""Inference servers: start one, send requests, stop it. Independent of traces and replays."""
