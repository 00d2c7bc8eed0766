#include <pybind11/pybind11.h>

#include "bindings/register.hpp"

PYBIND11_MODULE(_native, m) {
  m.doc() = "C++ kernels, key tables, rings and shards of mpips";
  mpips::register_fault(m);
  mpips::register_kernels(m);
  mpips::register_keys(m);
  mpips::register_key_plan(m);
  mpips::register_data(m);
  mpips::register_tables(m);
  mpips::register_words(m);
  mpips::register_client(m);
  mpips::register_codec(m);
  mpips::register_trace(m);
  mpips::register_record(m);
  mpips::register_feedback(m);
  mpips::register_shared_memory(m);
  mpips::register_layout(m);
  mpips::register_memory_layout(m);
  mpips::register_region_reads(m);
  mpips::register_ring(m);
  mpips::register_messages(m);
  mpips::register_common_view(m);
  mpips::register_port(m);
  mpips::register_consistency(m);
  mpips::register_hot_rows(m);
  mpips::register_server(m);
  mpips::register_reduction(m);
  mpips::register_shared_pulls(m);
  mpips::register_node_rows(m);
  mpips::register_process(m);
  mpips::register_checkpoint(m);
  mpips::register_queue(m);
}
