#pragma once

#include <cstddef>
#include <string>
#include <vector>

// Description of the layout of memory that outlives a launch, for the test that holds
// `memory_format` to it: structs with the offsets of their members, numbers of words, and offsets
// of an example.
namespace mpips {

struct LayoutEntry {
  std::string name;
  std::size_t offset, bytes;  // of a member; of a number: the number, 0
};

std::vector<LayoutEntry> memory_layout();

}  // namespace mpips
