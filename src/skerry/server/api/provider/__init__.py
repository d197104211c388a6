"""The provider contract over HTTP, for `skerry.providers.remote`."""
