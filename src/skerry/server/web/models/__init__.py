"""Models of requests, which check them, and of answers, for the OpenAPI document."""
