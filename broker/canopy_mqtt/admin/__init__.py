"""HTTP on the broker's event loop: metrics, health, the API and the page. docs/operations.md describes it for users.

`server` listens, `http_connections` bounds connections, `authentication` identifies the caller, `routing` defines and
calls routes, `host` is their view of the broker, `paging` splits long lists, `api` has the routes, `routes` collects
them.
"""
