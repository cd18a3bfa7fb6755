"""Results as tables, charts and HTML pages; imports neither rich nor streamlit."""
