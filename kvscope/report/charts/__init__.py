"""Facts as plotly figures, one file a subject; the report and the dashboard show the same ones."""
