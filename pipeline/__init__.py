"""Spark jobs over recorded segments, and a Spark data source for live MQTT.

Nothing is here yet. What will be: batch and streaming jobs that read the recorder's Parquet segments, and the data
source. May import pyspark, pyarrow and paho-mqtt, and nothing of `broker`. Its dependencies are the optional extra
`canopy-mqtt[pipeline]`; nothing that serves MQTT needs them.
"""
