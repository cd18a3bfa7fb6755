"""One compiled replay loop for each shape of policy."""
