"""One file of `canopy_spark` for the executors of a cluster."""
