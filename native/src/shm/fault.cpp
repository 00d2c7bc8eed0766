#include "shm/fault.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

#if MPIPS_FAULTS

#include <unistd.h>

#include <csignal>
#include <cstring>

namespace mpips::fault {

bool detail::armed = false;

namespace {

// By Point.
constexpr const char* names[] = {
    "any",           "payload",        "stamped",     "unit-saving", "unit-saved",
    "unit-changing", "unit-changed",   "unit-done",   "rows-made",   "row-moving",
    "row-moved",     "row-writing",    "row-written", "row-reading", "row-placed",
    "copied",        "word-logged",    "word-put",    "committed",   "acknowledged",
    "recovering",    "taken-over",     "resumed",     "cut-held",    "cut-copied",
    "block-written", "synced",         "named",       "unmarked",    "clock-begun",
    "placed",        "ticking",        "ticked",      "sending",     "clock-ended",
    "local-saving",  "contributed",    "part-summed", "summed",      "summed-clock",
    "residual-made", "residual-tagged"};
static_assert(std::size(names) == static_cast<std::size_t>(Point::residual_tagged) + 1);

Point chosen = Point::any;
std::uint64_t left = 0, count = 0;  // passage that kills, counted from 1 (0: none); passages so far
Hook hook = nullptr;                // called in place of the kill, after `left` further passages

Point point_of(const std::string& name) {
  std::string known;
  for (std::size_t i = 0; i < std::size(names); ++i) {
    if (name == names[i]) return static_cast<Point>(i);
    known += std::string(i == 0 ? "" : ", ") + names[i];
  }
  throw std::invalid_argument("MPIPS_FAULT names no fault point '" + name + "'; use one of " +
                              known);
}

// Return the entry of the setting for the launch of this generation; "" if it has none.
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

}  // namespace

void arm_from_environment() {
  const char* text = std::getenv("MPIPS_FAULT");
  if (text != nullptr) arm(for_launch(text, std::getenv("MPIPS_GENERATION")).c_str());
}

void arm(const char* text) {
  count = 0;
  hook = nullptr;
  detail::armed = false;
  if (text == nullptr || *text == '\0') return;
  const char* colon = std::strchr(text, ':');
  char* end = nullptr;
  const unsigned long long n = colon != nullptr ? std::strtoull(colon + 1, &end, 10) : 0;
  if (colon == nullptr || end == colon + 1 || *end != '\0')
    throw std::invalid_argument("MPIPS_FAULT = '" + std::string(text) +
                                "': must be point:n with a number n (0: only count)");
  chosen = point_of(std::string(text, colon));
  left = n;
  detail::armed = true;
}

void arm_hook(Hook called, std::uint64_t first) {
  count = 0;
  chosen = Point::any;
  hook = called;
  left = first;
  detail::armed = hook != nullptr;
}

void hook_after(std::uint64_t passages) noexcept { left = passages; }

std::uint64_t passed() noexcept { return count; }

void pass_named(const char* name) {
  if (armed()) detail::pass(point_of(name));
}

void detail::pass(Point point) noexcept {
  if (chosen != Point::any && chosen != point) return;
  ++count;
  if (hook != nullptr) {
    // Other stacks pass points while the hook has switched to them: `left` is theirs then, too.
    if (left != 0 && --left == 0) hook(names[static_cast<std::size_t>(point)]);
    return;
  }
  if (count == left) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
}

}  // namespace mpips::fault

#else

namespace mpips::fault {

void arm_from_environment() { arm(std::getenv("MPIPS_FAULT")); }

void arm(const char* text) {
  if (text == nullptr || *text == '\0') return;
  throw std::runtime_error(
      "MPIPS_FAULT = '" + std::string(text) +
      "', but this build of mpips has no fault points; unset it, or build with them: "
      "MPIPS_SETUP_TESTS=1 bash jobs/setup.sh (CMake option MPIPS_FAULTS=ON)");
}

void arm_hook(Hook hook, std::uint64_t) {
  if (hook != nullptr)
    throw std::runtime_error("this build of mpips has no fault points (CMake option MPIPS_FAULTS)");
}

void hook_after(std::uint64_t) noexcept {}

std::uint64_t passed() noexcept { return 0; }

void pass_named(const char*) {}

}  // namespace mpips::fault

#endif
