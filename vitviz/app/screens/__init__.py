"""The pages, one module each, and parts of them.

The folder is not called `pages`, as Streamlit runs the files of such a folder by itself.
"""
