#pragma once

#include <pybind11/pybind11.h>

namespace mpips {

void register_fault(pybind11::module_& m);
void register_kernels(pybind11::module_& m);
void register_keys(pybind11::module_& m);
void register_key_plan(pybind11::module_& m);
void register_data(pybind11::module_& m);
void register_tables(pybind11::module_& m);
void register_words(pybind11::module_& m);
void register_client(pybind11::module_& m);
void register_codec(pybind11::module_& m);
void register_feedback(pybind11::module_& m);
void register_common_view(pybind11::module_& m);
void register_shared_memory(pybind11::module_& m);
void register_layout(pybind11::module_& m);
void register_region_reads(pybind11::module_& m);
void register_ring(pybind11::module_& m);
void register_messages(pybind11::module_& m);
void register_port(pybind11::module_& m);
void register_consistency(pybind11::module_& m);
void register_hot_rows(pybind11::module_& m);
void register_server(pybind11::module_& m);
void register_reduction(pybind11::module_& m);
void register_shared_pulls(pybind11::module_& m);
void register_node_rows(pybind11::module_& m);
void register_process(pybind11::module_& m);
void register_checkpoint(pybind11::module_& m);
void register_memory_layout(pybind11::module_& m);
void register_trace(pybind11::module_& m);
void register_record(pybind11::module_& m);
void register_queue(pybind11::module_& m);

}  // namespace mpips
