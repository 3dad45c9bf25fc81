"""The document about the API is one that others can read."""

from __future__ import annotations

from openapi_spec_validator import validate

from canopy_mqtt.admin.routes import all_routes, document
from canopy_mqtt.admin.routing import BASE


def test_it_is_valid() -> None:
    made = document(route for route in all_routes() if route.path.startswith(BASE))
    validate(made)
    assert len(made["paths"]) > 20
