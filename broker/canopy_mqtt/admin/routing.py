"""Defines routes, and passes requests to them: checks the role, parses query and body, and answers errors.

Owns `Route`, `Call` and `RequestHandler`. Promises: a handler gets only permitted requests, with a query and a body
that its models have validated; its exceptions are answered, and logged if they are faults of the broker.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, get_type_hints

from aiohttp import hdrs, web
from pydantic import BaseModel, ValidationError

from canopy_mqtt.admin.authentication import (
    ANYONE,
    CHALLENGE,
    SAFE,
    Authentication,
    Banned,
    Caller,
    Role,
    WrongCredentials,
    is_json,
)
from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.host import Host, node_of
from canopy_mqtt.admin.http_connections import HttpConnections
from canopy_mqtt.admin.paging import Page, as_json
from canopy_mqtt.json_keys import RepeatedKey, unique
from canopy_mqtt.store.base import StoreError

Method: TypeAlias = Literal["GET", "POST", "PUT", "DELETE"]

BASE: Final = "/api/v5"
"""The first part of the API's paths, as in EMQX 5."""

NODE: Final = "Canopy-Node"
"""The header that names the node of a cluster of which alone an answer is."""

MISSING: Final = "Canopy-Missing-Workers"
"""The header that names the workers whose part an answer lacks (`canopy_mqtt.workers`)."""

ESCAPE: Final = "\x1b"
"""A character before a part of a path that is not of the part: browsers and proxies take `.` and `..` for steps of the
path, also as `%2e`, and leave them out."""

AT_ONCE: Final = 2
"""Requests for lists and figures that are handled in one turn of the event loop: each takes about a millisecond, which
delays all MQTT clients. `http_connections.IN_A_TURN` is about all requests."""

MAX_NAME_LENGTH: Final = 64
"""Characters of a body's name in an error."""

MAX_FAULTS: Final = 5
"""Faults of a query or a body in an error."""

SECURE: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    hdrs.CACHE_CONTROL: "no-store",
    hdrs.SERVER: "canopy",
}
"""Headers of every answer that does not set its own."""


@dataclass(slots=True)
class Call:
    """One request with parsed query and body."""

    broker: Host
    request: web.Request
    caller: Caller
    path: dict[str, str]
    query: Any = None
    """An instance of the route's model."""
    body: Any = None
    """An instance of the route's model."""

    @property
    def role(self) -> Role:
        return self.caller.role


Handled: TypeAlias = BaseModel | web.StreamResponse | None
Handler: TypeAlias = Callable[[Call], Awaitable[Handled]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. `{name}` in the path is one segment of it, without `ESCAPE` before it.

    `body` is a model that forbids names that it does not have. `handler` gives a model, which is answered as JSON;
    None for 204; or a response of its own. `streams`: its answer may take longer than `http.timeout`.
    """

    method: Method
    path: str
    handler: Handler
    summary: str
    role: Role = "viewer"
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    status: int = 200
    tag: str = ""
    streams: bool = False


class Routes(list[Route]):
    def __init__(self, tag: str = "") -> None:
        """`tag`: the group in the API's document."""
        super().__init__()
        self._tag = tag

    def add(
        self,
        method: Method,
        path: str,
        role: Role = "viewer",
        *,
        query: type[BaseModel] | None = None,
        body: type[BaseModel] | None = None,
        status: int = 200,
        streams: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Register the decorated handler for a route: its docstring is the summary, and its annotation the answer."""

        def added(handler: Handler) -> Handler:
            made = get_type_hints(handler)["return"]
            answer = made if isinstance(made, type) and issubclass(made, BaseModel) else None
            summary = (handler.__doc__ or "").splitlines()[0].removesuffix(".")
            self.append(Route(method, path, handler, summary, role, query, body, answer, status, self._tag, streams))
            return handler

        return added


class RequestHandler:
    def __init__(
        self,
        broker: Host,
        authentication: Authentication,
        connections: HttpConnections,
        timeout: float,
        public: Sequence[str],
        handle: Callable[[Route, Call], Awaitable[Handled]],
    ) -> None:
        """`timeout`: seconds for a whole request. `public`: paths that need no credentials. `handle` answers."""
        self._handle = handle
        self._public = public
        self._broker = broker
        self.authentication = authentication
        self._connections = connections
        self._timeout = timeout
        self._looking = asyncio.Semaphore(AT_ONCE)

    def add(self, app: web.Application, route: Route, local: bool) -> None:
        """Serve a route. `local`: at the Unix socket."""

        # Health and the page's files do not wait for lists; questions of `explain` wait for each other already.
        in_turn = route.method == "GET" and not (route.role == "anyone" or route.streams or route.tag == "explain")

        if route.path in self._public:
            route = replace(route, role="anyone")

        async def answer(request: web.Request) -> web.StreamResponse:
            return await self._answer(request, route, local, in_turn)

        app.router.add_route(route.method, route.path, answer)
        if route.method == "GET":
            app.router.add_route("HEAD", route.path, answer)

    async def _answer(self, request: web.Request, route: Route, local: bool, in_turn: bool) -> web.StreamResponse:
        connection = self._connections.find(request.transport)
        if connection is not None:
            connection.request_began()
        try:
            async with asyncio.timeout(None if route.streams else self._timeout):
                made = await self._call(request, route, local, in_turn)
        except WrongCredentials as error:
            if connection is not None:
                # While it waits it keeps no other out.
                connection.request_ended()
            await asyncio.sleep(error.delay)
            made = error_response(error)
        except Banned:
            if connection is not None:
                connection.evict()
            made = error_response(ApiError(403, "FORBIDDEN", "banned for guessing"))
        except ApiError as error:
            made = error_response(error)
        except StoreError as error:
            made = error_response(ApiError(503, "SERVICE_UNAVAILABLE", str(error)))
        except TimeoutError:
            made = error_response(ApiError(503, "TIMEOUT", "the request took too long"))
        except web.HTTPException as error:
            made = error_response(ApiError(error.status, "BAD_REQUEST", error.reason))
        except ConnectionError:
            # The client has gone, in the middle of the body or of a streamed answer: this is not read.
            made = error_response(ApiError(400, "BAD_REQUEST", "the connection is gone"))
        except Exception as error:
            self._broker.faults.broke("http", error)
            made = error_response(ApiError(500, "INTERNAL_ERROR", "the broker failed at this; its log says where"))
        finally:
            if connection is not None:
                connection.request_ended()
        return made

    async def _call(self, request: web.Request, route: Route, local: bool, in_turn: bool) -> web.StreamResponse:
        # Health checks come under any host name, and with any credentials.
        caller = ANYONE if route.role == "anyone" else await self.authentication.identify(request, local)
        if not caller.may(route.role):
            if caller.role == "anyone":
                raise ApiError(401, "UNAUTHORIZED", "a user or a token is needed", CHALLENGE)
            raise ApiError(403, "FORBIDDEN", f"this takes an {route.role}: {caller.name} is a {caller.role}")
        if self._broker.stopping and request.method not in SAFE:
            # Its tasks would not be ended, and its messages not be stored.
            raise ApiError(503, "SERVICE_UNAVAILABLE", "the broker is stopping")
        path = {name: part.removeprefix(ESCAPE) for name, part in request.match_info.items()}
        call = Call(self._broker, request, caller, path)
        if route.query is not None:
            call.query = _query(request, route.query)
        elif request.query and route.path.startswith(BASE):
            raise ApiError(400, "BAD_REQUEST", f"{next(iter(request.query))}: this path takes no query")
        if route.body is not None:
            call.body = await _body(request, route.body)
        if not in_turn:
            return await self._made(route, call)
        async with self._looking:
            try:
                return await self._made(route, call)
            finally:
                # Also after an answer that did not wait for anything: the next one comes in a turn of its own.
                await asyncio.sleep(0)

    async def _made(self, route: Route, call: Call) -> web.StreamResponse:
        made = await self._handle(route, call)
        if made is None:
            return with_security_headers(web.Response(status=204))
        if isinstance(made, BaseModel):
            own = route.method == "GET" and not getattr(made, "of_all_nodes", False)
            node = node_of(self._broker) if own else None
            if isinstance(made, Page):
                made.meta.node = node
            body = await as_json(made) if isinstance(made, Page) else made.model_dump_json(by_alias=True).encode()
            headers = {} if node is None else {NODE: node}
            return with_security_headers(
                web.Response(body=body, content_type="application/json", status=route.status, headers=headers)
            )
        return made if made.prepared else with_security_headers(made)


def with_security_headers(response: web.StreamResponse) -> web.StreamResponse:
    for name, value in SECURE.items():
        response.headers.setdefault(name, value)
    return response


def error_response(error: ApiError) -> web.StreamResponse:
    text = error_text(error.code, error.message)
    return with_security_headers(
        web.Response(text=text, content_type="application/json", status=error.status, headers=error.headers)
    )


def error_text(code: str, message: str) -> str:
    return json.dumps({"code": code, "message": message})


def _query(request: web.Request, model: type[BaseModel]) -> BaseModel:
    given: dict[str, Any] = {}
    for name in request.query:
        values = request.query.getall(name)
        field = model.model_fields.get(name)
        if field is None:
            raise ApiError(400, "BAD_REQUEST", f"{name}: there is {', '.join(sorted(model.model_fields))}")
        listed = "list" in str(field.annotation)
        if len(values) > 1 and not listed:
            raise ApiError(400, "BAD_REQUEST", f"{name}: given more than once")
        given[name] = values if listed else values[0]
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ApiError(400, "BAD_REQUEST", _describe(error, model)) from None


async def _body(request: web.Request, model: type[BaseModel]) -> BaseModel:
    if not is_json(request):
        raise ApiError(415, "UNSUPPORTED_MEDIA_TYPE", "the body has to be JSON: Content-Type: application/json")
    try:
        content = await request.read()
        made = model.model_validate_json(content)
        # Pydantic takes the last of two values without a word.
        json.loads(content, object_pairs_hook=unique, parse_int=float)
        return made
    except web.HTTPRequestEntityTooLarge:
        raise ApiError(413, "BAD_REQUEST", "the body is larger than http.max_request_bytes") from None
    except web.RequestPayloadError:
        raise ApiError(400, "BAD_REQUEST", "the body is not encoded as its headers say") from None
    except ValidationError as error:
        raise ApiError(400, "BAD_REQUEST", _describe(error, model)) from None
    except RepeatedKey as error:
        raise ApiError(400, "BAD_REQUEST", f"body: {error}") from None


def _describe(error: ValidationError, model: type[BaseModel]) -> str:
    """Describe the faults without the values: these may be passwords."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    told = []
    for each in faults:
        place = each["loc"]
        unknown = each["type"] == "extra_forbidden"
        what = f"there is {_allowed_names(model, place[:-1])}" if unknown else each["msg"]
        told.append(f"{'.'.join(str(part)[:MAX_NAME_LENGTH] for part in place) or 'body'}: {what}")
    more = len(told) - MAX_FAULTS
    return "; ".join(told[:MAX_FAULTS]) + (f"; and {more} more" if more > 0 else "")


def _allowed_names(model: type[BaseModel], place: Sequence[int | str]) -> str:
    for part in place:
        inner = model.model_fields[str(part)].annotation
        assert isinstance(inner, type)
        assert issubclass(inner, BaseModel)
        model = inner
    return ", ".join(sorted(field.alias or name for name, field in model.model_fields.items()))
