"""Every option of the manual page of mosquitto 2.1, and those of 2.0 that it has no more, with an example of each."""

from __future__ import annotations

from typing import Final, NamedTuple


class Option(NamedTuple):
    """A value that it may have, and whether it belongs to a bridge."""

    example: str
    bridge: bool = False


def _options(text: str, bridge: bool = False) -> dict[str, Option]:
    pairs = [line.strip().partition(" ") for line in text.strip().splitlines()]
    return {name: Option(value.strip(), bridge) for name, _, value in pairs}


MANUAL: Final[dict[str, Option]] = {
    **_options("""
        acl_file /acl
        allow_anonymous true
        allow_duplicate_messages true
        allow_zero_length_clientid true
        auth_opt_x y
        auth_plugin /x.so
        auth_plugin_deny_special_chars true
        auto_id_prefix a-
        autosave_interval 1800
        autosave_on_changes false
        check_retain_source true
        clientid_prefixes c-
        connection_messages true
        enable_control_api true
        global_max_clients 10
        global_max_connections 10
        global_plugin /x.so
        include_dir conf.d
        log_dest stderr
        log_facility 5
        log_timestamp true
        log_timestamp_format %Y
        log_type all
        max_inflight_bytes 0
        max_inflight_messages 20
        max_keepalive 60
        max_packet_size 1000
        max_queued_bytes 0
        max_queued_messages 1000
        memory_limit 0
        message_size_limit 0
        packet_buffer_size 4096
        password_file /p
        per_listener_settings false
        persistence true
        persistence_file m.db
        persistence_location /var
        persistent_client_expiration 1d
        pid_file /m.pid
        plugin /x.so
        plugin_load x /x.so
        plugin_opt_x y
        plugin_use x
        psk_file /psk
        queue_qos0_messages true
        retain_available true
        retain_expiry_interval 5
        set_tcp_nodelay true
        sys_interval 10
        upgrade_outgoing_qos false
        user mosquitto
        websockets_headers_size 1024
        websockets_log_level 0
        retry_interval 20
        store_clean_interval 10
        accept_protocol_versions 4,5
        bind_address 127.0.0.1
        bind_interface eth0
        cafile /ca.pem
        capath /ca
        certfile /c.pem
        ciphers ECDHE
        ciphers_tls1.3 TLS_AES_256_GCM_SHA384
        crlfile /crl.pem
        dhparamfile /dh.pem
        disable_client_cert_date_checks true
        enable_proxy_protocol 2
        http_dir /www
        keyfile /k.pem
        listener 1883
        listener_allow_anonymous true
        listener_auto_id_prefix a-
        max_connections 10
        max_qos 1
        max_topic_alias 10
        max_topic_alias_broker 10
        mount_point a/
        port 1883
        protocol mqtt
        proxy_protocol_v2_require_tls true
        psk_hint hint
        require_certificate true
        socket_domain ipv4
        tls_engine e
        tls_engine_kpass_sha1 00
        tls_keyform engine
        tls_version tlsv1.2
        use_identity_as_username true
        use_subject_as_username true
        use_username_as_clientid true
        websockets_origin https://a.example
    """),
    **_options(
        """
        address h:1883
        addresses h:1883
        bridge_alpn mqtt
        bridge_attempt_unsubscribe true
        bridge_bind_address 127.0.0.1
        bridge_cafile /ca.pem
        bridge_capath /ca
        bridge_certfile /c.pem
        bridge_ciphers ECDHE
        bridge_ciphers_tls1.3 TLS_AES_256_GCM_SHA384
        bridge_identity i
        bridge_insecure true
        bridge_keyfile /k.pem
        bridge_max_packet_size 1000
        bridge_max_topic_alias 10
        bridge_outgoing_retain false
        bridge_protocol_version mqttv50
        bridge_psk aa
        bridge_receive_maximum 10
        bridge_reload_type lazy
        bridge_require_ocsp true
        bridge_session_expiry_interval 60
        bridge_tcp_keepalive 1 2 3
        bridge_tcp_user_timeout 100
        bridge_tls_use_os_certs true
        bridge_tls_version tlsv1.2
        cleansession true
        clientid c
        connection another
        idle_timeout 60
        keepalive_interval 60
        local_cleansession true
        local_clientid l
        local_password p
        local_username u
        notification_topic n
        notifications true
        notifications_local_only true
        password p
        remote_clientid c
        remote_password p
        remote_username u
        restart_timeout 5 30
        round_robin true
        start_type lazy
        threshold 10
        topic a/# out 0
        try_private true
        username u
        """,
        bridge=True,
    ),
}

LISTENER_TLS: Final = frozenset({"capath", "ciphers", "crlfile", "tls_version"})
"""Options that mean something beside certificates alone."""
