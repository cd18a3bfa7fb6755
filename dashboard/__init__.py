"""The dashboard: kvscope's use cases as pages that Streamlit serves in a browser."""
