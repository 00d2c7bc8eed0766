#pragma once

#include <string>
#include <vector>

#include "client/array_copy.hpp"
#include "client/mpips.h"
#include "queue/sample_queue.hpp"

namespace mpips {

// A field as the stream and as the application has it.
struct DeclaredField {
  const QueueField* field;
  ArrayCopy copy;
};

// Code of a wait that `is_interrupted` has ended, besides those of mpips.h. It has no message.
constexpr int interrupted = -1;

// mpips_open with an interrupt, which Python has (bindings/client.cpp); see mpips_producer.
int open_producer(mpips_producer** producer, const char* name, int number, double timeout_s,
                  bool (*interrupt)() noexcept);

}  // namespace mpips

// The producer of mpips.h.
struct mpips_producer {
  std::string name, path;
  int number;
  double timeout_s;
  mpips::QueueFile file;
  std::vector<mpips::DeclaredField> declared;
  // Called between two looks of a wait, which ends if it returns true. Null: never.
  bool (*is_interrupted)() noexcept = nullptr;

  mpips::QueueHeader& header() const noexcept { return *file.header(); }
  const char* id() const noexcept { return name.c_str(); }
};
