"""The commit of a batch to tables that are no folders of Parquet: Delta and Iceberg."""
