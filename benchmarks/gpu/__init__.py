"""Evidence from a machine with a GPU: what travels there, the stages that run there, the page."""
