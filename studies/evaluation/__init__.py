"""Word vectors scored on word benchmarks, and Table 1 of Ethayarajh 2019."""
