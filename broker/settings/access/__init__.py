"""The sections about clients: who they are (`[[authenticator]]`, `[security]`) and what they may do (`[[rule]]`)."""
