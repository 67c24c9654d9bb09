"""An endpoint in FastAPI for `serve.py`, as its documentation shows: `... MODEL PORT`.

Each request is decoded and computed in the pool of threads.
"""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from served_model import Model
from starlette.concurrency import run_in_threadpool


def build(model: Model) -> FastAPI:
    """The application."""
    app = FastAPI()

    def work(content: bytes) -> dict[str, Any]:
        return model.answer(model.compute([model.decode(content)])[0])

    @app.post("/classify")
    async def classify(request: Request) -> dict[str, Any]:
        return await run_in_threadpool(work, await request.body())

    return app


if __name__ == "__main__":
    uvicorn.run(build(Model(sys.argv[1])), port=int(sys.argv[2]))
