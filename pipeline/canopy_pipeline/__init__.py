"""Jobs over recorded segments, on Spark or DuckDB, and MQTT as a source and a sink of Spark.

Owns: the meaning of recorded events for those who read them. The recorder writes Parquet segments
(`canopy_mqtt.record`); this package reads them by their columns. Of what serves MQTT it imports the codec (`mqtt`) and
the writer of row groups (`compact`).

`cli`, `command_options` (the command `canopy pipeline`, importable without pyspark) · `errors` · `runtime` (engines and
files) · `record` (the table of events) · `outputs`, `matching` · a package for each job, with NAME_job, NAME_page … ·
`tables` (payloads as columns) · `mqtt` (the data source). Its dependencies are the optional extra
`canopy-mqtt[pipeline]`; nothing that serves MQTT needs them.
"""
