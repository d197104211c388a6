"""Who makes a request, and whether they may."""
