"""`canopy convert`: settings of Canopy from those of mosquitto.

`source` reads a mosquitto.conf, `options` has every option of mosquitto 2.0 and 2.1 and what becomes of it,
`listeners`, `access` (who comes in, who may do what) and `bridges` convert what takes more than one line, `draft` holds
the result and writes it as TOML, and `mosquitto` is the whole.
"""
