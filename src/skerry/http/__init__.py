"""The low-level client of a Skerry server: requests with typed errors, blocking and async, and where the key is."""

from skerry.core.config import login_file
from skerry.http.api import Api, AsyncApi
from skerry.http.client import AsyncClient, Client
from skerry.http.exchange import Request, idempotent
from skerry.http.login import Login, find_login, forget_login, load_login, save_login

__all__ = [
    "Api",
    "AsyncApi",
    "AsyncClient",
    "Client",
    "Login",
    "Request",
    "find_login",
    "forget_login",
    "idempotent",
    "load_login",
    "login_file",
    "save_login",
]
