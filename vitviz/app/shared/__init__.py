"""What all pages and sessions share: the view, results, models, pictures, and their caches."""
