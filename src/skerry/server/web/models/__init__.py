"""What requests carry, checked, and what answers look like, for the OpenAPI document."""
