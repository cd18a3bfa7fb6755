"""Facts as tables, charts and reports; knows neither rich nor streamlit."""
