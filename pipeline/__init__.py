"""Jobs over recorded segments, on Spark or DuckDB, and MQTT as a source and a sink of Spark.

Owns: the meaning of recorded events for those who read them. The recorder writes Parquet segments (`broker.record`);
this package reads them by their columns. Of `broker` it imports the codec alone (`mqtt`).

In the order in which one meets them: `cli`, `options` (the command `canopy pipeline`, importable without pyspark),
`errors` · `runtime` (who computes, and where files are) · `record` (the table of events) · `outputs`, `matching`, and a
package for each job · `tables` (payloads as columns) · `mqtt` (the data source). Its dependencies are the optional
extra `canopy-mqtt[pipeline]`; nothing that serves MQTT needs them.
"""
