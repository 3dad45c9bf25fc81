"""`canopy convert`: makes settings of Canopy from those of mosquitto.

`source` reads a mosquitto.conf; `options` lists every option of mosquitto 2.0 and 2.1 with its conversion; `listeners`,
`security` and `bridges` convert groups of options; `draft` collects the result and writes it as TOML; `mosquitto` runs
the whole.
"""
