"""The states of a sandbox, and what is kept of it: snapshots, copies, exports, volumes."""
