"""Sections about clients: authentication (`[[authenticator]]`, `[security]`) and rights (`[[rule]]`, `[access]`)."""
