"""The learner of `soft-ttl` and `trtllm-priority`: what requests state about their blocks."""
