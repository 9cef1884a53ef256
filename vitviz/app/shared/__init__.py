"""State that all pages and sessions share: the view, results, models, pictures, caches."""
