"""SGLang's scheduler and prefix cache: batches of requests, on a tree of nodes."""
