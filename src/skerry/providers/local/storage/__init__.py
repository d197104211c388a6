"""What is on disk: layers, snapshots, volumes, exports, and the pool they are in."""
