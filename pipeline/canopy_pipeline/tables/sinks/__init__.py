"""The commit of a batch to the tables: to folders of Parquet, to Delta Lake, to Iceberg."""
