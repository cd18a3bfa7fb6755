"""The dashboard's pages; Streamlit runs each as a script (it claims folders called `pages`)."""
