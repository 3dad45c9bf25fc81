"""The broker's figures: one catalogue, from which `$SYS`, `/metrics`, the API and the alarms read."""
