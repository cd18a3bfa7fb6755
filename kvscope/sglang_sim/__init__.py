"""SGLang's prefix cache: its tree of nodes, and requests that run on it."""
