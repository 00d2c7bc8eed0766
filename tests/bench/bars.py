"""Bars of the suites of this folder, in the form of `mpips.bench.measure.BARS`."""

from __future__ import annotations

from mpips.bench.measure import Bars

BARS: Bars = {
    "monitor_metrics": (">=", 0.97),
    "monitor_page": (">=", 0.97),
    "monitor_trace": (">=", 0.95),
    "map_lookup_vs_robin": (">=", 1.5),
    "adam_vs_torch_fused": (">=", 1.0),
    "sgd_vs_torch_fused": (">=", 1.0),
    "adagrad_vs_torch_fused": (">=", 1.0),
    "train_overhead_digits": ("<=", 1.15),
    "train_overhead_w6a": ("<=", 1.15),
    "idle_cpu": ("<=", 0.05),
    "oversubscribed": (">=", 0.8),
    "ring_scaling": (">=", 0.9),
    "table_memory_vs_plan": ("<=", 1.1),
    "table_rate_last_vs_first": (">=", 0.8),
    "libsvm_vs_sklearn": (">=", 3.0),
    "csv_vs_pandas": (">=", 1.0),
    "parquet_vs_pyarrow": (">=", 0.9),
    "worker_memory": ("<=", 1.05),
    "streamed_vs_in_memory": (">=", 0.9),
    "node_bytes": ("<=", 0.36),
    "asp_node_bytes": ("<=", 0.7),
    "node_rows_bytes": ("<=", 0.7),
    "rack_bytes": ("<=", 0.78),
    "rack_node_bytes": ("<=", 0.7),
    "small_pulls": ("<=", 0.35),
    "priority": ("<=", 0.3),
    "priority_all": ("<=", 1.1),
    **{f"placement_vs_best_{job}": ("<=", 1.1) for job in ("small", "mlp", "large", "servers")},
    "logistic_vs_vw_alone": (">=", 1.2),
    "logistic_vs_vw": (">=", 1.0),
    "diloco_bytes": ("<=", 0.05),
    "diloco_loss": ("<=", 1.02),
    "word2vec_vs_gensim_1": (">=", 1.0),
    "word2vec_vs_gensim_2": (">=", 1.0),
    "word2vec_loss_1": ("<=", 1.01),
    "word2vec_loss_2": ("<=", 1.01),
}
