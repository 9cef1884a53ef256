"""Parts of which pages are built: figures, menus, tables and the token map."""
