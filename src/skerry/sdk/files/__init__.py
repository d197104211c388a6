"""Files of a sandbox: read, written, moved in and out, searched, watched."""
