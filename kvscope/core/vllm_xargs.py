"""Names in a request's `vllm_xargs`, which tell an engine more than OpenAI's own fields do."""

OUTPUTS = "kvscope_outputs"  # the tokens to answer
TYPE, TURN = "kvscope_type", "kvscope_turn"  # for policies that tell categories apart
ARRIVAL = "kvscope_arrival_s"  # when a trace that is replayed has the request
