"""The benchmark: workloads, runs with saved raw results, and tables and figures of them."""
