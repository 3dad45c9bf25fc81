#!/bin/sh
# Runs the broker as an app of Home Assistant. The container ends with the broker, and the other processes with it.
set -eu

python3 -P /app/prepare.py

python3 -P /app/ingress.py &
{
    until canopy health >/dev/null 2>&1; do sleep 1; done
    exec python3 -P /app/announce.py
} &

exec canopy serve --config /data/canopy.toml --store /data/store --set http.listen=http+unix:///run/canopy.sock
