"""Models of reuse and of conversations: estimators, what they find, and which of them to trust."""
