"""A small web application: `uvicorn main:app --reload` serves it, and again after each change."""

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI(title="app")


class Greeting(BaseModel):
    message: str


@app.get("/")
def read_root(name: str = "FastAPI") -> Greeting:
    return Greeting(message=f"Hello from {name}")


@app.get("/health")
def read_health() -> dict[str, str]:
    return {"status": "ok"}
