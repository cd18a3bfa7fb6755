"""Models of reuse and of conversations: estimators, their results, and the choice of a model."""
