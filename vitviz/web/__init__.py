"""The components that run in a browser, and their hosts: the app, a notebook, a file."""
