"""HTTP for all workers together: figures, health and the API, asked of those who know and put together."""
