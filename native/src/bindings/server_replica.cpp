#include <string>

#include "bindings/server.hpp"

// A server and its replica on another node: batches of records, and reports of what has arrived.
namespace mpips {
namespace {

py::dict partner_dict(Server& server) {
  const PartnerCounters& c = server.core().partner_counters();
  py::dict d;
  d["records"] = c.records;
  d["bytes"] = c.bytes;
  return d;
}

// Check that `words` has two words for each worker; return the number of workers.
std::size_t n_workers_of(Server& server, const WordArray& words) {
  const std::size_t n = server.core().n_workers();
  if (words.ndim() != 2 || static_cast<std::size_t>(words.shape(0)) != n || words.shape(1) != 2)
    throw py::value_error("words must have shape (number of workers, 2)");
  return n;
}

// Write a replica's report to the server: for each worker the number of records that have arrived
// and the number of those consumed.
void partner_words(Server& server, WordArray& out) {
  const std::size_t n = n_workers_of(server, out);
  for (std::size_t w = 0; w < n; ++w) {
    out.mutable_data()[2 * w] = server.core().arrived(w);
    out.mutable_data()[2 * w + 1] = server.core().applied(w);
  }
}

void take_partner_words(Server& server, const WordArray& words) {
  const std::size_t n = n_workers_of(server, words);
  for (std::size_t w = 0; w < n; ++w)
    server.core().partner_has(w, words.data()[2 * w], words.data()[2 * w + 1]);
}

}  // namespace

void bind_server_replica(py::class_<Server>& server) {
  server.def("begin_partnership", [](Server& s) { s.core().begin_partnership(); })
      .def(
          "outgoing",
          [](Server& s, ByteArray& batch) {
            std::uint8_t* data = batch.mutable_data();
            const auto bytes = static_cast<std::size_t>(batch.size());
            py::gil_scoped_release release;
            return s.core().outgoing(data, bytes);
          },
          py::arg("batch").noconvert())
      .def("become_copy", [](Server& s) { s.core().become_copy(); })
      .def(
          "accept",
          [](Server& s, const ByteArray& batch, std::size_t n_bytes) {
            if (n_bytes > static_cast<std::size_t>(batch.size()))
              throw py::value_error("n_bytes = " + std::to_string(n_bytes) +
                                    ": the batch has only " + std::to_string(batch.size()) +
                                    " bytes");
            const std::uint8_t* data = batch.data();
            py::gil_scoped_release release;
            s.core().accept(data, n_bytes);
          },
          py::arg("batch").noconvert(), py::arg("n_bytes"))
      .def("partner_words", &partner_words, py::arg("out").noconvert())
      .def("take_partner_words", &take_partner_words, py::arg("words").noconvert())
      .def("partner_counters", &partner_dict);
}

}  // namespace mpips
