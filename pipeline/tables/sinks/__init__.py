"""How a batch becomes part of a table that is no folder of Parquet: of Delta, of Iceberg, as messages of Kafka."""
