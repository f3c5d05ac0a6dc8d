"""Every error that Retoma raises on purpose, and the one table that says how each is answered.

    RetomaError
    ├── RequestError          the caller can mend it: answered with a 4xx
    │   ├── InvalidRequest, UnsupportedParameter, ModelNotFound, ContextLengthExceeded
    │   ├── InvalidToken, InsufficientScope, NotFound
    │   ├── TaskUnfinished, IdempotencyInProgress, Conflict, StaleVersion
    │   └── TooLarge, IdempotencyConflict, QueueFull, RateLimited
    ├── Unavailable           nothing was accepted, the same request may be sent again: 503
    │   └── StoreUnavailable, StoreFull, ShuttingDown
    ├── LeaseLost             the writer no longer owns the task; nothing was written
    ├── IllegalTransition     the task's state forbids the command; nothing was written
    ├── Refused               a state or a version of the installation forbids the command (exit status 3)
    └── EngineError           an attempt failed: EngineCrashed, EngineStalled, ModelUnavailable, ModelCorrupt

A class's docstring is a sentence that a user may see; `message` says what happened this time.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar


class RetomaError(Exception):
    """Something went wrong inside Retoma."""

    code: ClassVar[str] = "internal"
    status: ClassVar[HTTPStatus] = HTTPStatus.INTERNAL_SERVER_ERROR

    def __init__(self, message: str = "", *, param: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip().splitlines()[0]
        self.param = param
        super().__init__(self.message)


class RequestError(RetomaError):
    """The request can't be carried out as it stands."""

    code = "invalid_request"
    status = HTTPStatus.BAD_REQUEST


class InvalidRequest(RequestError):
    """The request is malformed; nothing was accepted."""


class UnsupportedParameter(RequestError):
    """The request names a parameter that this server does not support; nothing was accepted."""

    code = "unsupported_parameter"


class ModelNotFound(RequestError):
    """No such model is registered; `retoma models list` shows those that are."""

    code = "model_not_found"


class ContextLengthExceeded(RequestError):
    """The prompt is longer than the model's context."""

    code = "context_length_exceeded"


class InvalidToken(RequestError):
    """The bearer token is missing or unknown."""

    code = "invalid_token"
    status = HTTPStatus.UNAUTHORIZED


class InsufficientScope(RequestError):
    """The token does not carry the scope that this request needs."""

    code = "insufficient_scope"
    status = HTTPStatus.FORBIDDEN


class NotFound(RequestError):
    """There is nothing under this id."""

    code = "not_found"
    status = HTTPStatus.NOT_FOUND


class TaskUnfinished(RequestError):
    """The task has not ended yet; cancel it first or wait."""

    code = "task_unfinished"
    status = HTTPStatus.CONFLICT


class IdempotencyInProgress(RequestError):
    """The first request with this key is still being accepted; try again in a moment."""

    code = "idempotency_in_progress"
    status = HTTPStatus.CONFLICT


class Conflict(RequestError):
    """The request contradicts the present state; nothing was changed."""

    code = "conflict"
    status = HTTPStatus.CONFLICT


class StaleVersion(RequestError):
    """The object has changed since the version in If-Match; nothing was changed."""

    code = "stale_version"
    status = HTTPStatus.PRECONDITION_FAILED


class TooLarge(RequestError):
    """The request body is larger than the server takes."""

    code = "too_large"
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class IdempotencyConflict(RequestError):
    """This idempotency key was used with another body; nothing was accepted."""

    code = "idempotency_key_reused"
    status = HTTPStatus.UNPROCESSABLE_ENTITY


class QueueFull(RequestError):
    """The queue is full; nothing was accepted; try again later."""

    code = "queue_full"
    status = HTTPStatus.TOO_MANY_REQUESTS


class RateLimited(RequestError):
    """Too many tries failed within a minute; nothing was looked at; try again later."""

    code = "rate_limited"
    status = HTTPStatus.TOO_MANY_REQUESTS


class Unavailable(RetomaError):
    """The service can't take requests now; nothing was accepted; try again."""

    code = "store_unavailable"
    status = HTTPStatus.SERVICE_UNAVAILABLE


class StoreUnavailable(Unavailable):
    """The store can't be reached or its answer is unknown; try again with the same idempotency key."""


class StoreFull(Unavailable):
    """The disk of the store is full; nothing was accepted; free some space and try again."""

    code = "store_full"


class ShuttingDown(Unavailable):
    """The service is stopping; nothing was accepted; try again in a moment."""

    code = "shutting_down"


class LeaseLost(RetomaError):
    """Another owner holds this task now; nothing was written."""

    code = "lease_lost"


class IllegalTransition(RetomaError):
    """The task's state forbids this command; nothing was written."""

    code = "conflict"
    status = HTTPStatus.CONFLICT


class Refused(RetomaError):
    """A state or a version of this installation forbids the command."""

    code = "refused"


class EngineError(RetomaError):
    """The engine could not finish the attempt."""

    innocent = False
    """The engine ended while it worked on another text: this one's attempt is over, and it is not to blame."""


class EngineCrashed(EngineError):
    """The engine's process ended in the middle of its work."""

    code = "engine_crashed"


class EngineStalled(EngineError):
    """The engine's process stopped answering and was ended."""

    code = "engine_stalled"


class ModelUnavailable(EngineError):
    """The model can't be loaded here."""

    code = "model_unavailable"


class ModelCorrupt(EngineError):
    """The model's file is not what it was when it was registered."""

    code = "model_corrupt"


class PromptTooLong(EngineError):
    """The prompt is longer than the model's context."""

    code = "context_length_exceeded"
