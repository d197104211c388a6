"""Git repositories inside a sandbox."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request, Response

from skerry.sdk import GitBranch, GitCommit, GitStatus
from skerry.server.web.describe import SANDBOX, Box, op
from skerry.server.web.guard import Routes
from skerry.server.web.models import inside
from skerry.server.web.models.mirror import answer, mirrored
from skerry.server.web.models.types import Answer, UserQuery, query_path
from skerry.server.web.refusals import GIT
from skerry.server.web.responses import while_there

router = Routes("git", raises=GIT)

Directory = Annotated[str, Depends(query_path)]
Ref = Annotated[str | None, Query(max_length=1024, description="A branch, a tag or a commit.")]


class Cloned(Answer):
    """The path of the repository."""

    path: str
    """The path."""


class Patch(Answer):
    """Differences as git shows them."""

    diff: str
    """The patch."""


@router.post(SANDBOX + "/git/clone", **op("Copy a repository into the sandbox", Cloned))
async def clone(request: Request, box: Box, body: inside.CloneRepository) -> Response:
    """Credentials are used once and not kept. If the clone fails or the client disconnects, nothing is left."""
    cloning = box.git.clone(
        body.url,
        body.path,
        branch=body.branch,
        ref=body.ref,
        depth=body.depth,
        username=body.username,
        password=body.password,
        recurse_submodules=body.recurse_submodules,
        timeout=body.timeout,
        user=body.user,
    )
    return answer({"path": await while_there(request, cloning)})


@router.get(SANDBOX + "/git/status", **op("Get the state of a working tree", mirrored(GitStatus)))
async def status(box: Box, path: Directory, user: UserQuery = None) -> Response:
    return answer(await box.git.status(path, user=user))


@router.post(SANDBOX + "/git/add", **op("Stage files", status=204))
async def add(box: Box, body: inside.StageFiles) -> Response:
    await box.git.add(body.path, body.paths, all=body.all, user=body.user)
    return Response(status_code=204)


@router.post(SANDBOX + "/git/commit", **op("Commit what is staged", mirrored(GitCommit), status=201))
async def commit(box: Box, body: inside.CommitFiles) -> Response:
    made = await box.git.commit(
        body.path,
        body.message,
        author_name=body.author_name,
        author_email=body.author_email,
        allow_empty=body.allow_empty,
        user=body.user,
    )
    return answer(made, 201)


@router.post(SANDBOX + "/git/push", **op("Send a branch to a remote", status=204))
async def push(request: Request, box: Box, body: inside.PushBranch) -> Response:
    pushing = box.git.push(
        body.path,
        remote=body.remote,
        branch=body.branch,
        set_upstream=body.set_upstream,
        force=body.force,
        username=body.username,
        password=body.password,
        timeout=body.timeout,
        user=body.user,
    )
    await while_there(request, pushing)
    return Response(status_code=204)


@router.post(SANDBOX + "/git/pull", **op("Fetch a branch and merge it or rebase on it", mirrored(GitCommit)))
async def pull(request: Request, box: Box, body: inside.PullBranch) -> Response:
    pulling = box.git.pull(
        body.path,
        remote=body.remote,
        branch=body.branch,
        rebase=body.rebase,
        username=body.username,
        password=body.password,
        timeout=body.timeout,
        user=body.user,
    )
    return answer(await while_there(request, pulling))


@router.get(
    SANDBOX + "/git/branches", **op("List local branches, then those of remotes", mirrored(GitBranch), listed=True)
)
async def branches(box: Box, path: Directory, user: UserQuery = None) -> Response:
    return answer({"items": await box.git.branches(path, user=user), "cursor": None})


@router.post(SANDBOX + "/git/branches", **op("Make a branch at a commit", status=204))
async def create_branch(box: Box, body: inside.CreateBranch) -> Response:
    await box.git.create_branch(body.path, body.name, start=body.start, user=body.user)
    return Response(status_code=204)


@router.delete(SANDBOX + "/git/branches", **op("Delete a local branch", status=204))
async def delete_branch(
    box: Box,
    path: Directory,
    name: Annotated[str, Query(max_length=1024, description="The branch.")],
    force: Annotated[bool, Query(description="Delete a branch even if it is not merged.")] = False,
    user: UserQuery = None,
) -> Response:
    await box.git.delete_branch(path, name, force=force, user=user)
    return Response(status_code=204)


@router.post(SANDBOX + "/git/checkout", **op("Check out a branch, a tag or a commit", status=204))
async def checkout(box: Box, body: inside.CheckOut) -> Response:
    await box.git.checkout(body.path, body.ref, create=body.create, user=body.user)
    return Response(status_code=204)


@router.get(
    SANDBOX + "/git/log",
    **op("List the last commits that lead to a ref, newest first", mirrored(GitCommit), listed=True),
)
async def log(
    box: Box,
    path: Directory,
    limit: Annotated[int, Query(ge=1, le=10_000, description="The most commits to return.")] = 50,
    ref: Ref = None,
    user: UserQuery = None,
) -> Response:
    found = await box.git.log(path, limit=limit, ref=ref or "HEAD", user=user)
    return answer({"items": found, "cursor": None})


@router.get(SANDBOX + "/git/diff", **op("Get the changes as a patch", Patch))
async def diff(
    box: Box,
    path: Directory,
    staged: Annotated[bool, Query(description="Show what is staged instead of what is not.")] = False,
    ref: Ref = None,
    paths: Annotated[list[str] | None, Query(max_length=1000, description="Only changes of these files.")] = None,
    user: UserQuery = None,
) -> Response:
    return answer({"diff": await box.git.diff(path, staged=staged, ref=ref, paths=paths or (), user=user)})
