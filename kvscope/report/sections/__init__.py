"""What an analysis says, subject by subject, as sections of words, tables and plots."""
