"""The broker's figures: one table of what is counted, which `$SYS`, `/metrics`, the API and the alarms read."""
