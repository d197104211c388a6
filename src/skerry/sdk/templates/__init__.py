"""Templates: built from definitions, images and sources."""
