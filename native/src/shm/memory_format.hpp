#pragma once

#include <cstdint>

namespace mpips {

// Format of everything that a launch leaves in shared memory for the next one: regions with their
// rings and records, journals, durable memory of replicated tables, the workers' local values, and
// memory.json, which describes them. It changes whenever any of these changes its layout or its
// meaning; tests/unit/recovery/test_memory_format.py compares it with the layout
// (server/memory_layout.hpp). A launch refuses memory of another format and leaves it as it is
// (mpips/recovery/takeover.py). Memory without a number counts as format 0.
constexpr std::uint8_t memory_format = 11;

}  // namespace mpips
