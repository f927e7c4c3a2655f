"""The measuring stick: workloads, runs with saved raw results, tables and figures from them."""
