"""Failures of the assertions in helpers say as much as those in tests."""

import pytest

pytest.register_assert_rewrite("tests.loadtest.load.playing")
