"""HTTP on the broker's event loop: metrics, health, the API and the page. docs/operations.md is for who uses it.

`server` listens, `gate` bounds connections, `access` says who asks, `routing` has what a route is and calls it, `host`
what routes need of the broker, `paging` long lists, `openapi` the document, `api` the routes, `routes` all of them.
"""
