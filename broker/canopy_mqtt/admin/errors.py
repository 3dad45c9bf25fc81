"""The error of the API: a status, a code as EMQX has them, and a sentence."""

from __future__ import annotations

from collections.abc import Mapping


class ApiError(Exception):
    """Answers a request with `{"code": …, "message": …}`."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})
