# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # From a trace to a recommendation
#
# Set `TRACE` to a trace of yours, and `GPU`, `MODEL` and `SLO` to your deployment. Make a notebook
# of this file with `jupytext --to notebook docs/notebook.py`.

# %%
import kvscope

TRACE = "sample_traces/birth-death.jsonl.gz"
MODEL = "llama3-8b"
GPU = "h100"
SLO = "200ms"

# %% [markdown]
# ## What is in the traffic
#
# Reading the trace is the slow part: open it once and pass it to every call.

# %%
trace = kvscope.open_trace(TRACE)
analysis = kvscope.analyze(trace, gpu=GPU, model=MODEL)
analysis

# %% [markdown]
# LRU's hit rate is exact at every capacity, not sampled.

# %%
analysis.figure("capacity")

# %%
categories = analysis.to_polars("categories")
categories.select("category", "requests", "share", "hit_share").sort("requests", descending=True)

# %% [markdown]
# ## What each policy would give
#
# Policies marked with a star are oracles: they know the future. `belady` is the optimum for hits.

# %%
simulation = kvscope.simulate(
    trace, policy=["lru", "tlru", "belady"], model=MODEL, capacity="2GiB", slo=SLO
)
simulation

# %%
results = simulation.to_polars()
results.select("policy", "token_hit_rate", "ttft_ms_p50", "ttft_ms_p95", "violations")

# %% [markdown]
# ## What to set
#
# `tune` searches on a training window, chooses on a validation window, and accepts or rejects the
# choice on held-out requests, on the engine of the deployment.

# %%
recommendation = kvscope.tune(trace, slo=SLO, gpu=GPU, model=MODEL, policy="tlru")
recommendation

# %%
recommendation.figure()

# %%
recommendation.save("recommendation.toml")
document = recommendation.to_dict()["recommendation"]
print(document["verdict"], document["policy"], document["params"])
print(document["flags"], document["why_no_flags"])

# %%
trace.close()
