#include "shm/fault.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace mpips::fault {

bool armed = false;

namespace {

constexpr const char* names[] = {
    "any",          "payload",       "stamped",    "unit-saving", "unit-saved",  "unit-changing",
    "unit-changed", "unit-done",     "rows-made",  "copied",      "word-logged", "word-put",
    "committed",    "acknowledged",  "recovering", "taken-over",  "resumed",     "cut-held",
    "cut-copied",   "block-written", "synced",     "named",       "unmarked",    "clock-begun",
    "placed",       "ticking",       "ticked",     "sending",     "clock-ended"};

Point chosen = Point::any;
std::uint64_t left = 0, count = 0;

Point point_of(const std::string& name) {
  std::string known;
  for (std::size_t i = 0; i < std::size(names); ++i) {
    if (name == names[i]) return static_cast<Point>(i);
    known += std::string(i == 0 ? "" : ", ") + names[i];
  }
  throw std::invalid_argument("MPIPS_FAULT has no point '" + name + "'; it has " + known);
}

// What of the setting is for this launch; "" for nothing.
std::string for_launch(const std::string& text, const char* generation) {
  const unsigned long launch = generation == nullptr ? 0 : std::strtoul(generation, nullptr, 10);
  std::size_t from = 0;
  for (unsigned long i = 0; i < launch; ++i) {
    from = text.find(',', from);
    if (from == std::string::npos) return "";
    ++from;
  }
  return text.substr(from, text.find(',', from) - from);
}

// At load a bad setting must not throw out of a constructor: it is reported at the first `arm`.
const bool from_environment = [] {
  const char* text = std::getenv("MPIPS_FAULT");
  if (text == nullptr || *text == '\0') return false;
  try {
    arm(for_launch(text, std::getenv("MPIPS_GENERATION")).c_str());
  } catch (const std::invalid_argument& error) {
    const std::string line = std::string("mpips: error: ") + error.what() + "\n";
    const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    std::_Exit(written < 0 ? 1 : 2);
  }
  return true;
}();

}  // namespace

void arm(const char* text) {
  count = 0;
  armed = false;
  if (text == nullptr || *text == '\0') return;
  const char* colon = std::strchr(text, ':');
  char* end = nullptr;
  const unsigned long long n = colon != nullptr ? std::strtoull(colon + 1, &end, 10) : 0;
  if (colon == nullptr || end == colon + 1 || *end != '\0')
    throw std::invalid_argument(
        "MPIPS_FAULT must be point:n with a number n (0: only count), not '" + std::string(text) +
        "'");
  chosen = point_of(std::string(text, colon));
  left = n;
  armed = true;
}

void pass_named(const char* name) { pass(point_of(name)); }

std::uint64_t passed() noexcept { return count; }

void pass(Point point) noexcept {
  if (chosen != Point::any && chosen != point) return;
  ++count;
  if (count == left) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
}

}  // namespace mpips::fault
