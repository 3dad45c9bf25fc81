"""The options of the data source: what is refused, and how it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from canopy_pipeline.errors import MisuseError
from canopy_pipeline.mqtt.mqtt_options import (
    batch_options,
    check_options,
    sink_options,
    stream_options,
    wrong_filter,
    wrong_topic,
)
from tests.support.runs import for_each

URL = {"url": "mqtt://broker.example"}
READ = URL | {"filters": "plant/#"}
STREAM = READ | {"client_id": "spark-1", "spool": "/var/spool/spark-1"}


def test_defaults() -> None:
    found = stream_options(STREAM)
    assert (found.broker.host, found.broker.port, found.broker.tls) == ("broker.example", 1883, False)
    assert (found.filters, found.qos, found.broker.version) == (("plant/#",), 1, "5")
    assert found.segment_s == 0.2
    tls = batch_options(READ | {"url": "mqtts://[::1]", "version": "3.1.1"})
    assert (tls.broker.port, tls.broker.version, tls.broker.url) == (8883, "3.1.1", "mqtts://[::1]:8883")


def test_names_are_found_in_any_case() -> None:
    assert stream_options(STREAM | {"Max_Rows": "7"}).max_rows == 7


@for_each(
    ("text", "filters"),
    [
        ("plant/#,other/+", ("plant/#", "other/+")),
        (" a , a,b ", ("a", "b")),
        ('["a,b/#", "c"]', ("a,b/#", "c")),
    ],
)
def test_filters(text: str, filters: tuple[str, ...]) -> None:
    assert batch_options(URL | {"filters": text}).filters == filters


@for_each(
    ("changed", "told"),
    [
        ({"url": ""}, "option 'url' is missing: give mqtt://"),
        ({"url": "http://broker"}, "option 'url' is 'http://broker': give mqtt://HOST:PORT"),
        ({"url": "mqtt://broker:99999"}, "option 'url' is no address"),
        ({"filters": ""}, "option 'filters' is missing"),
        ({"filters": "a/#/b"}, "option 'filters' has 'a/#/b': topic filter holds # before its end"),
        ({"filters": "a+"}, "option 'filters' has 'a+': topic filter holds + beside other characters"),
        ({"filters": "a,,b"}, "option 'filters' has '': topic filter is empty"),
        ({"filters": "[1]"}, "option 'filters' is '[1]': as JSON, give a list of strings"),
        ({"qos": "3"}, "option 'qos' is '3': give from 0 to 2"),
        ({"qos": "one"}, "option 'qos' is 'one': give from 0 to 2"),
        ({"max_rows": "0"}, "option 'max_rows' is '0': give rows, from 1 to"),
        ({"available_now_wait": "nan"}, "option 'available_now_wait' is 'nan': give seconds"),
        ({"version": "4"}, "option 'version' is '4': give 5 or 3.1.1"),
        ({"tls_insecure": "yes"}, "option 'tls_insecure' is 'yes': give true or false"),
        ({"tls_ca": "/etc/hostname"}, "option 'tls_ca' is set and the url is no mqtts"),
        ({"url": "mqtts://b", "tls_ca": "/nowhere"}, "option 'tls_ca' is '/nowhere': there is no such file"),
        ({"client_id": ""}, "option 'client_id' is missing: give a name that stays the same over restarts"),
        ({"spool": "here"}, "option 'spool' is a relative path (here): give an absolute one"),
        ({"duration": "3"}, "option 'duration' is for read alone: leave it out here"),
        ({"topic": "x"}, "option 'topic' is for write and writeStream alone"),
        ({"filter": "x"}, "option 'filter' is unknown to the source mqtt; there are: available_now_wait, client_id"),
        ({"password": "secret"}, "option 'password' is set without 'user_name'"),
        ({"password_file": "/nowhere", "user_name": "u"}, "option 'password_file' is '/nowhere': it cannot be read"),
    ],
)
def test_refused_in_one_line(changed: dict[str, str], told: str) -> None:
    with pytest.raises(MisuseError) as refused:
        stream_options(STREAM | changed)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_password_is_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"\xef\xbb\xbfhunter2\r\n")
    found = sink_options(URL | {"user_name": "u", "password_file": str(file)})
    assert found.broker.password == "hunter2"
    assert "hunter2" not in repr(found)
    with pytest.raises(MisuseError) as refused:
        sink_options({"url": "mqtt://u:hunter2@broker"})
    assert "hunter2" not in str(refused.value)
    assert "user_name" in str(refused.value)


def test_what_is_wrong_is_told_at_load_where_the_use_shows() -> None:
    check_options(STREAM)
    check_options({})
    for wrong in (STREAM | {"qos": "9"}, READ | {"idle": "never"}, READ | {"url": "broker"}, {"path": "/x"}):
        with pytest.raises(MisuseError):
            check_options(wrong)


def test_topics_and_filters() -> None:
    assert [wrong_topic(each) for each in ("a", "a/b", "/", "$x")] == [None] * 4
    assert all(wrong_topic(each) for each in ("", "a/+", "#", "a\0", "x" * 65_536, "\ud800"))
    assert [wrong_filter(each) for each in ("#", "+", "a/+/b", "$share/g/a/#", "/")] == [None] * 5
