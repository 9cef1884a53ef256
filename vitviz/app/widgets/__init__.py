"""What pages are made of: figures, menus, tables and the token map."""
