"""The learner of `trtllm-priority`: what requests state about their blocks."""
