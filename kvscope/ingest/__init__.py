"""From a trace file to the store: formats, prefix trie, lineage."""
