"""The names by which requests tell more than OpenAI's own fields, shared by both sides."""

OUTPUTS = "kvscope_outputs"  # the tokens to answer
TYPE, TURN = "kvscope_type", "kvscope_turn"  # for policies that tell categories apart
