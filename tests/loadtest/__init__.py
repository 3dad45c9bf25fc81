"""Tests of the load generator, module by module; a broker is only needed by the end-to-end ones, and any will do."""
