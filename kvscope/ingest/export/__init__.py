"""Stored traces as files of other tools' formats: one file a format, one line in the registry."""
