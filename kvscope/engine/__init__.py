"""Earlier place of `kvscope.vllm_plugin`, for launch scripts written before it moved."""
