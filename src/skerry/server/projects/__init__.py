"""What belongs to a project: sandboxes, snapshots, volumes, names."""
