"""The blocking API, generated from the async one."""
